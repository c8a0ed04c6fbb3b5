//! The frame of every page, and the overview page with its sections.

use imagelet_core::image::{ByteSize, ImageId, counted, shown_name};
use jiff::Timestamp;
use maud::{DOCTYPE, Markup, html};

use super::{
    charts::{image_map, share_bar, state, usage},
    text::{ago, image_href, shown},
};
use crate::{
    api::{Disk, ImageRow, OpenCircuitRow, Queue},
    durations::milliseconds,
    node::DecisionRow,
};

use Column::{Number, Text};

const IMAGES_MAX: usize = 200;

#[derive(Debug, Default)]
pub(super) struct Overview {
    pub(super) backend: String,
    pub(super) queue: Queue,
    /// `None` in this field and the next two: the request for the section failed, and `problems` has the reason.
    pub(super) disk: Option<Disk>,
    pub(super) images: Option<Vec<ImageRow>>,
    pub(super) decisions: Option<Vec<DecisionRow>>,
    pub(super) problems: Vec<String>,
}

pub(super) fn page(title: &str, backend: &str, content: &Markup) -> String {
    let here = |of: &str| (of == title).then_some("page");
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " – imagelet" }
                link rel="stylesheet" href="/assets/dashboard.css";
                link rel="icon" href="/assets/icon.svg" type="image/svg+xml";
                script src="/assets/dashboard.js" defer {}
            }
            body {
                a .skip href="#main" { "Skip to content" }
                header {
                    strong .brand { "imagelet" }
                    span .backend { (backend) }
                    span #live role="status" {}
                    nav aria-label="Pages" {
                        a href="/" aria-current=[here("Overview")] { "Overview" }
                        a href="/plan" aria-current=[here("Collection plan")] { "Plan" }
                        a href="/api/v1/openapi.json" { "API" }
                    }
                }
                main #main tabindex="-1" { (content) }
            }
        }
    }
    .into_string()
}

pub(super) fn overview(model: &Overview, now: Timestamp) -> String {
    let content = html! {
        h1 .visually-hidden { "Overview" }
        (section("problems", "Problems", &problems(&model.problems)))
        (section("disk", "Disk", &known(model.disk.as_ref(), disk)))
        (section("pulls", "Pulls", &pulls()))
        (section("images", "Images", &known(model.images.as_ref(), |rows| images(rows, now))))
        (section("decisions", "Last decisions", &known(model.decisions.as_ref(), |rows| decisions(rows, now))))
        (section("waits", "Waits", &waits(&model.queue)))
        (section("registries", "Registries", &registries(&model.queue)))
    };
    page("Overview", &model.backend, &content)
}

fn known<T>(answer: Option<&T>, content: impl FnOnce(&T) -> Markup) -> Markup {
    answer.map_or_else(|| html! {}, content)
}

/// A section of the page. The script of the page replaces the section with a newer version.
fn section(id: &str, title: &str, content: &Markup) -> Markup {
    html! {
        section id=(id) aria-labelledby=(format!("{id}-title")) data-refresh hidden[content.0.is_empty()] {
            h2 id=(format!("{id}-title")) { (title) }
            div .body { (content) }
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Column {
    Text(&'static str),
    Number(&'static str),
}

/// A table. Each cell also has the name of its column, for narrow screens.
pub(super) fn table<const N: usize>(columns: [Column; N], rows: impl IntoIterator<Item = [Markup; N]>) -> Markup {
    html! {
        table {
            thead { tr { @for column in columns { @match column {
                Text(name) => { th { (name) } }
                Number(name) => { th .number { (name) } }
            } } } }
            tbody { @for row in rows { tr { @for (column, cell) in columns.into_iter().zip(row) { @match column {
                Text(name) => { td data-label=(name) { (cell) } }
                Number(name) => { td .number data-label=(name) { (cell) } }
            } } } } }
        }
    }
}

fn problems(problems: &[String]) -> Markup {
    html! { @for problem in problems { p .problem role="alert" { (problem) } } }
}

fn tile(name: &str, value: &str) -> Markup {
    html! { div .stat { dt { (name) } dd { (value) } } }
}

fn disk(disk: &Disk) -> Markup {
    let Some(used) = disk.used_percent else {
        return html! { p .empty { "The disk of the images is not visible from the daemon." } };
    };
    html! {
        dl .stats {
            (tile("Used", &format!("{used}%")))
            (tile("Free", &ByteSize(disk.available).to_string()))
            (tile("Collection", &format!("{}% → {}%", disk.high_percent, disk.low_percent)))
            @if let Some(forecast) = disk.forecast() { (tile("Forecast", &forecast)) }
        }
        (usage(disk))
        (share_bar(disk))
        @if disk.gc_mode == "shadow" {
            p .note { "Shadow mode: selected images are reported and not removed." }
        }
    }
}

/// The text and the table for running pulls. The script adds the rows, and both are hidden until it follows the pulls.
fn pulls() -> Markup {
    html! {
        p .empty #no-pulls hidden { "No pull is running." }
        table #pull-rows hidden {
            thead { tr { th { "Image" } th { "Progress" } th .number { "Rate" } th .number { "Left" } th { "Pod" } } }
            tbody {}
        }
    }
}

fn images(images: &[ImageRow], now: Timestamp) -> Markup {
    if images.is_empty() {
        return html! { p .empty { "There are no images." } };
    }
    let mut rows: Vec<&ImageRow> = images.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.unique.unwrap_or(row.size)));
    html! {
        p .note {
            (counted(images.len(), "image")) " by the bytes that only they hold: "
            span .key.in-use {} "in use " span .key.pinned {} "pinned " span .key.unused {} "unused"
        }
        (image_map(images, 960.0, 320.0, "wide"))
        (image_map(images, 360.0, 420.0, "narrow"))
        details {
            summary { "As a list" }
            (table(
                [Text("Image"), Number("Own"), Number("Size"), Text("Last used"), Text("Next collection")],
                rows.iter().take(IMAGES_MAX).map(|row| [
                    html! { a href=(image_href(&row.id)) { (shown(row)) } },
                    html! { (row.unique.map_or_else(|| "-".into(), |size| ByteSize(size).to_string())) },
                    html! { (ByteSize(row.size)) },
                    html! { (row.last_used.as_ref().map_or_else(|| "-".into(), |at| ago(at, now))) },
                    html! { (row.next_reason.as_deref().unwrap_or_else(|| state(row))) },
                ]),
            ))
            @if rows.len() > IMAGES_MAX {
                p .note { (rows.len() - IMAGES_MAX) " more: " code { "/api/v1/images" } }
            }
        }
    }
}

fn decisions(decisions: &[DecisionRow], now: Timestamp) -> Markup {
    if decisions.is_empty() {
        return html! { p .empty { "Nothing is recorded yet." } };
    }
    let row = |row: &DecisionRow| {
        let happening = &row.happening;
        let name = ImageId::shown(happening.names.first(), &row.id);
        let target = if row.id.is_empty() { &*name } else { row.id.as_str() };
        [
            html! { (happening.at.as_ref().map_or_else(String::new, |at| ago(at, now))) },
            html! { (happening.what) },
            html! {
                // The pattern of a pin has no page of its own, so it is no link.
                @if row.id.is_empty() && name.contains(['*', '?']) { (name) }
                @else { a href=(image_href(target)) { (name) } }
            },
            html! { (happening.explained()) },
        ]
    };
    table([Text("When"), Text("What"), Text("Image"), Text("Why")], decisions.iter().map(row))
}

fn waits(queue: &Queue) -> Markup {
    let waiting: Vec<_> = queue.pulls.iter().filter(|pull| pull.state != "running").collect();
    html! {
        @if waiting.is_empty() && queue.held_back.is_empty() {
            p .empty { "Nothing waits." }
        }
        @if !waiting.is_empty() {
            (table(
                [Text("Waiting pull"), Text("For"), Number("Place"), Number("Priority"), Number("Since")],
                waiting.into_iter().map(|pull| [
                    html! { (shown_name(&pull.image)) },
                    html! { (pull.waits_for()) },
                    html! { (pull.position.map_or_else(|| "-".into(), |place| place.to_string())) },
                    html! { (pull.priority) },
                    html! { (milliseconds(pull.for_ms)) },
                ]),
            ))
        }
        @if !queue.held_back.is_empty() {
            (table(
                [Text("In back-off"), Number("Pods"), Number("Again in"), Text("Because")],
                queue.held_back.iter().map(|held| [
                    html! { (shown_name(&held.image)) },
                    html! { (held.pods) },
                    html! { (milliseconds(held.remaining_ms)) },
                    html! { (held.failure) },
                ]),
            ))
        }
    }
}

fn registries(queue: &Queue) -> Markup {
    if queue.registries.is_empty() {
        return html! { p .empty { "No registry is held back: all are asked." } };
    }
    let row = |open: &OpenCircuitRow| {
        let next = if open.remaining_seconds == 0 { "now".into() } else { milliseconds(open.remaining_seconds * 1000) };
        [
            html! { (open.registry) },
            html! { (open.pulls) },
            html! { (next) },
            html! { (counted(open.failures, "failure")) " (" (open.class) ")" },
        ]
    };
    let columns = [Text("Not asked"), Text("For"), Number("Next attempt in"), Text("Because")];
    table(columns, queue.registries.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::{HeldBackRow, OpenCircuitRow, PullRow},
        node::WhyHappening,
    };

    fn now() -> Timestamp {
        "2026-08-02T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn an_empty_node_says_so_in_every_section() {
        let empty = Overview {
            disk: Some(Disk::default()),
            images: Some(Vec::new()),
            decisions: Some(Vec::new()),
            ..Overview::default()
        };
        let text = overview(&empty, now());
        // A section without an answer claims nothing.
        let unknown = overview(&Overview::default(), now());
        for words in ["not visible", "There are no images", "Nothing is recorded"] {
            assert!(text.contains(words), "{words} is missing");
            assert!(!unknown.contains(words), "{words} is not known");
        }
        for words in ["Nothing waits", "all are asked"] {
            assert!(text.contains(words) && unknown.contains(words), "{words}: the pulls are always known");
        }
        for text in [&text, &unknown] {
            assert!(text.contains("hidden>No pull is running."), "the script shows it: {text}");
        }
        assert!(!text.contains("Log out") && text.contains("id=\"problems\""), "{text}");
    }

    #[test]
    fn the_overview_shows_what_a_node_does_and_why() {
        let hostile = "r.example/<img src=x onerror=alert(1)>:v1".to_owned();
        let model = Overview {
            backend: "store /s".into(),
            disk: Some(Disk {
                used_percent: Some(71),
                high_percent: 85,
                low_percent: 80,
                capacity: 100,
                available: 29,
                ..Disk::default()
            }),
            images: Some(vec![ImageRow {
                id: "sha256:ab".into(),
                names: vec![hostile.clone()],
                size: 5_000_000,
                ..ImageRow::default()
            }]),
            queue: Queue {
                pulls: vec![PullRow {
                    image: "r.example/b:v1".into(),
                    state: "waiting-for-rate".into(),
                    position: Some(2),
                    ..PullRow::default()
                }],
                held_back: vec![HeldBackRow { failure: "no such host".into(), ..HeldBackRow::default() }],
                registries: vec![OpenCircuitRow {
                    registry: "r.example".into(),
                    failures: 3,
                    class: "registry-unreachable".into(),
                    ..OpenCircuitRow::default()
                }],
            },
            decisions: Some(vec![DecisionRow {
                id: "sha256:cd".into(),
                happening: WhyHappening {
                    at: Some("2026-08-01T23:00:00Z".into()),
                    what: "removed".into(),
                    reason: "least needed".into(),
                    bytes: Some(1000),
                    by: "timer".into(),
                    ..WhyHappening::default()
                },
            }]),
            problems: vec!["the runtime is away".into()],
        };
        let text = overview(&model, now());
        assert!(!text.contains("<img") && !text.contains("onerror=alert(1)>"), "names are escaped");
        for words in [
            "store /s",
            "71%",
            "85% → 80%",
            "the rate limit",
            "no such host",
            "3 failures (registry-unreachable)",
            "least needed, 1kB, by timer",
            "60m ago",
            "/image?ref=sha256%3Acd",
            "the runtime is away",
        ] {
            assert!(text.contains(words), "{words} is missing in {text}");
        }
    }

    #[test]
    fn a_pattern_has_no_link_and_a_short_pull_its_milliseconds() {
        let row = |name: &str, what: &str, took_ms| DecisionRow {
            happening: WhyHappening { what: what.into(), names: vec![name.into()], took_ms, ..WhyHappening::default() },
            ..DecisionRow::default()
        };
        let rows = [row("r.example/team/*", "pinned", None), row("r.example/app:v1", "pulled", Some(40))];
        let text = decisions(&rows, Timestamp::now()).into_string();
        assert!(text.contains("r.example/team/*<") && text.matches("href").count() == 1, "{text}");
        assert!(text.contains(">in 40ms<"), "{text}");
    }
}
