//! The pages of one image and of a collection's plan.

use imagelet_core::image::{ByteSize, ImageId, counted};
use jiff::Timestamp;
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    page::{
        Column::{Number, Text},
        page, table,
    },
    text::{ago, image_href},
};
use crate::{
    api::{ArtifactRow, Collected, ImageRow},
    failure::Failure,
    node::{Why, WhyHappening, WhyImage},
};

const ROWS_MAX: usize = 300;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PlanForm {
    /// The size to free, as the user types it. Empty: the plan is for the thresholds.
    pub(super) free: String,
    pub(super) all_unused: Option<String>,
}

pub(super) fn plan(backend: &str, form: &PlanForm, planned: &Result<Collected, Failure>) -> String {
    let content = html! {
        section {
            h1 { "Collection plan" }
            p .note { "What a collection would remove now. Nothing is removed by looking at it." }
            form .row method="get" action="/plan" {
                label for="free" { "Free at least" }
                input #free name="free" value=(form.free) placeholder="10Gi" size="8" autocomplete="off";
                label .check {
                    input type="checkbox" name="allUnused" value="true" checked[form.all_unused.is_some()];
                    "all unused images"
                }
                button type="submit" { "Plan" }
            }
            @match planned {
                Ok(plan) => (planned_rows(plan)),
                Err(failure) => (failed(failure)),
            }
        }
    };
    page("Collection plan", backend, &content)
}

pub(super) fn failed_page(backend: &str, failure: &Failure) -> String {
    page("Failed", backend, &html! { section { h1 { "Failed" } (failed(failure)) } })
}

fn failed(failure: &Failure) -> Markup {
    html! {
        p .problem role="alert" { (failure.to_string()) }
        @if let Some(hint) = &failure.hint { p .note { (hint) } }
    }
}

fn planned_rows(plan: &Collected) -> Markup {
    let removed = plan.images.iter().filter(|row| row.verdict != "keep").count();
    let wanted =
        plan.wanted.map_or_else(|| "no space is needed".to_owned(), |wanted| format!("{} wanted", ByteSize(wanted)));
    html! {
        p {
            strong { (removed) " of " (counted(plan.images.len(), "image")) " would be removed" }
            ", which frees " (ByteSize(plan.frees)) " (" (plan.certainty) "); "
            "the disk is " (plan.used_percent_before) "% full, " (wanted) "."
        }
        @if let Some(shortfall) = &plan.shortfall { p .problem { (shortfall) } }
        (table(
            [Text("Image"), Text("Decision"), Number("Frees"), Number("Size"), Text("Reason")],
            plan.images.iter().take(ROWS_MAX).map(|row| [
                html! { a href=(image_href(&row.id)) { (ImageId::shown(row.names.first().or(row.digests.first()), &row.id)) } },
                html! { @if row.verdict == "keep" { "keep" } @else { strong { (row.verdict) } } },
                html! { (row.frees.map_or_else(|| "-".into(), |size| ByteSize(size).to_string())) },
                html! { (ByteSize(row.size)) },
                html! { (row.reason) },
            ]),
        ))
        @if plan.images.len() > ROWS_MAX {
            p .note { (plan.images.len() - ROWS_MAX) " more: " code { "/api/v1/gc/plan" } }
        }
    }
}

pub(super) fn image(backend: &str, why: &Why, now: Timestamp) -> String {
    let title = why.images.first().map_or_else(|| "Image".to_owned(), title_of);
    let content = html! {
        @for image in &why.images { (image_section(image, now)) }
        @for problem in &why.problems { p .problem role="alert" { (problem) } }
    };
    page(&title, backend, &content)
}

fn title_of(image: &WhyImage) -> String {
    ImageId::shown(image.names.first(), &image.id).into_owned()
}

fn image_section(image: &WhyImage, now: Timestamp) -> Markup {
    html! {
        section {
            h1 { (title_of(image)) }
            dl .facts {
                @for (name, value) in facts(image, now) { dt { (name) } dd { (value) } }
            }
            h2 { "History" }
            @if image.history.is_empty() { p .empty { "Nothing is recorded." } }
            @else {
                (table([Text("When"), Text("What"), Text("Why")], image.history.iter().rev().map(|happening| [
                    html! { (when(happening, now)) },
                    html! { (happening.what) },
                    html! { (happening.explained()) },
                ])))
            }
        }
    }
}

fn facts(image: &WhyImage, now: Timestamp) -> impl Iterator<Item = (&'static str, String)> {
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let at = |time: &String| ago(time, now);
    let row = image.now.as_ref();
    let joined = |texts: fn(&ImageRow) -> &Vec<String>| row.map(|row| texts(row).join(", "));
    let facts = [
        ("Id", Some(image.id.clone())),
        ("Names", Some(image.names.join(", "))),
        ("Artifact", row.and_then(|row| row.artifact.as_ref()).map(ArtifactRow::summary)),
        ("Size", Some(size(image.size))),
        ("Only in this image", row.and_then(|row| row.unique).map(size)),
        ("Shared with others", row.and_then(|row| row.shared).map(size)),
        ("First seen", row.and_then(|row| row.first_seen.as_ref()).map(at)),
        ("Last used", row.and_then(|row| row.last_used.as_ref()).map(at)),
        ("In use by", joined(|row| &row.in_use_by)),
        ("Pinned by", joined(|row| &row.pinned_by)),
        ("Awaited by", joined(|row| &row.awaited_by)),
        ("State", row.is_none().then(|| "not present".into())),
        ("Next collection", image.next.as_ref().map(|next| format!("{}: {}", next.verdict, next.reason))),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?)))
}

fn when(happening: &WhyHappening, now: Timestamp) -> String {
    happening.at.as_ref().map(|at| ago(at, now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::CollectedRow, node::WhyNext};

    #[test]
    fn a_plan_names_each_image_with_its_reason_and_a_failure_its_hint() {
        let row = |id: &str, verdict: &str, reason: &str| CollectedRow {
            id: id.into(),
            verdict: verdict.into(),
            reason: reason.into(),
            ..CollectedRow::default()
        };
        let planned = Collected {
            images: vec![row("sha256:aa", "remove", "unused for 3 days"), row("sha256:bb", "keep", "pinned by <b>")],
            frees: 7_000_000,
            certainty: "exact".into(),
            used_percent_before: 88,
            ..Collected::default()
        };
        let form = PlanForm { free: "1\"><script>".into(), all_unused: Some(String::new()) };
        let text = plan("", &form, &Ok(planned));
        for words in [
            "1 of 2 images would be removed",
            "7MB (exact)",
            "88% full",
            "unused for 3 days",
            "pinned by &lt;b&gt;",
            " checked",
            "1&quot;&gt;&lt;script&gt;",
        ] {
            assert!(text.contains(words), "{words} is missing in {text}");
        }
        let failed = plan("", &form, &Err(Failure::new("Unavailable", "no answer").or_hint("wait")));
        assert!(failed.contains("no answer") && failed.contains(">wait<"), "{failed}");
    }

    #[test]
    fn the_page_of_an_image_has_its_state_its_next_decision_and_its_history_latest_first() {
        let happening = |what: &str, at: &str| WhyHappening {
            at: Some(at.into()),
            what: what.into(),
            reason: "because".into(),
            ..WhyHappening::default()
        };
        let image_now = WhyImage {
            id: "sha256:aa".into(),
            names: vec!["r.example/app:v1".into()],
            now: Some(ImageRow {
                unique: Some(3000),
                in_use_by: vec!["shop/web/app".into()],
                artifact: Some(ArtifactRow { r#type: "a/model".into(), files: 2, ..ArtifactRow::default() }),
                ..ImageRow::default()
            }),
            next: Some(WhyNext { verdict: "keep".into(), reason: "in use".into(), ..WhyNext::default() }),
            history: vec![happening("pulled", "2026-08-01T00:00:00Z"), happening("refused", "2026-08-01T12:00:00Z")],
            ..WhyImage::default()
        };
        let why = Why { images: vec![image_now, WhyImage::default()], ..Why::default() };
        let text = image("", &why, "2026-08-02T00:00:00Z".parse().unwrap());
        for words in [
            "r.example/app:v1",
            "3kB",
            "a/model, 2 files",
            "shop/web/app",
            "keep: in use",
            ">refused<",
            "not present",
            "Nothing is recorded",
        ] {
            assert!(text.contains(words), "{words} is missing in {text}");
        }
        assert!(text.find(">refused<") < text.find(">pulled<"), "{text}");
    }
}
