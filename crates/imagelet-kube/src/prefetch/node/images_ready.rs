//! The condition `imagelet.dev/ImagesReady`: whether a node has the images of all gated sets. A pure function.

use imagelet_core::{image::counted, printable::printable_start};

use crate::prefetch::objects::{ImagePhase, ImageReport, ImageSet, SetPhase, SetReport};

pub(super) const CONDITION: &str = "imagelet.dev/ImagesReady";
const NAMED_MAX: usize = 10;
const MESSAGE_LENGTH_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImagesReady {
    pub(super) is_ready: bool,
    pub(super) message: String,
}

impl ImagesReady {
    pub(super) const PRESENT: &str = "ImagesPresent";
    pub(super) const MISSING: &str = "ImagesMissing";

    /// `gated` are the reports of gated sets. `beyond` are the gated sets that no node fetches because of a limit.
    /// Returns `None` if no gated set selects the node.
    pub(super) fn of(gated: &[SetReport], beyond: &[ImageSet]) -> Option<Self> {
        let mut images: Vec<(&SetReport, &ImageReport)> =
            gated.iter().flat_map(|set| set.images.iter().map(move |image| (set, image))).collect();
        // An image of several sets counts once, and is missing if it is missing in one set.
        images.sort_by_key(|(_, image)| (&image.reference, &image.platform, image.phase == ImagePhase::Present));
        images.dedup_by_key(|(_, image)| (&image.reference, &image.platform));
        let (all, mut missing) = (images.len(), images);
        missing.retain(|(_, image)| image.phase != ImagePhase::Present);
        let (is_ready, message) = match beyond.first() {
            None if gated.is_empty() => return None,
            None if missing.is_empty() => {
                (true, format!("all images of {} are present", counted(gated.len(), "gated set")))
            }
            None => {
                let named: Vec<String> = missing.iter().take(NAMED_MAX).map(|(set, image)| named(set, image)).collect();
                let more = missing.len().saturating_sub(NAMED_MAX);
                let more = if more > 0 { format!(", and {more} more") } else { String::new() };
                let (count, all) = (missing.len(), counted(all, "image"));
                (false, format!("missing {count} of {all} of gated sets: {}{more}", named.join(", ")))
            }
            Some(ImageSet { name, .. }) => {
                let count = counted(beyond.len(), "gated set");
                (false, format!("{count} beyond the limits of prefetch, as {name}: no node fetches the images"))
            }
        };
        Some(Self { is_ready, message: printable_start(&message, MESSAGE_LENGTH_MAX) })
    }
}

fn named(set: &SetReport, ImageReport { reference, phase, class, hop, .. }: &ImageReport) -> String {
    let why = match (phase, set.phase) {
        (ImagePhase::Failed, _) => format!(" ({class} at {hop})"),
        (ImagePhase::Pulling, _) => String::new(),
        (_, SetPhase::Waiting) => " (waits for its turn)".to_owned(),
        (_, SetPhase::Paused) => " (the set is paused)".to_owned(),
        (_, SetPhase::Expired) => " (the deadline has passed)".to_owned(),
        _ => String::new(),
    };
    format!("{reference}{why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefetch::objects::testing::set;

    fn report(phase: SetPhase, images: &[(&str, ImagePhase)]) -> SetReport {
        let image = |(reference, phase): &(&str, ImagePhase)| ImageReport {
            reference: (*reference).to_owned(),
            phase: *phase,
            class: if *phase == ImagePhase::Failed { "forbidden".into() } else { String::new() },
            hop: if *phase == ImagePhase::Failed { "token".into() } else { String::new() },
            // The message of a registry stays out of the condition.
            message: "denied for tenant".into(),
            ..ImageReport::default()
        };
        SetReport { phase, images: images.iter().map(image).collect(), ..SetReport::default() }
    }

    #[test]
    fn a_node_is_ready_when_each_image_of_each_gated_set_is_present_and_names_the_missing_ones_otherwise() {
        use ImagePhase::{Failed, Pending, Present, Pulling, Removed};
        use SetPhase::{Expired, Paused, Ready, Waiting};
        let ready = || report(Ready, &[("a:1", Present), ("b:1", Present)]);
        for (gated, expected) in [
            (vec![], None),
            (vec![ready()], Some((true, "all images of 1 gated set are present"))),
            (vec![ready(), report(Ready, &[("a:1", Present)])], Some((true, "all images of 2 gated sets are present"))),
            (
                vec![ready(), report(SetPhase::Pulling, &[("c:1", Pulling), ("d:1", Pending)])],
                Some((false, "missing 2 of 4 images of gated sets: c:1, d:1")),
            ),
            (
                vec![report(SetPhase::Failed, &[("a:1", Failed), ("b:1", Present)])],
                Some((false, "missing 1 of 2 images of gated sets: a:1 (forbidden at token)")),
            ),
            (
                vec![report(Waiting, &[("a:1", Pending)])],
                Some((false, "missing 1 of 1 image of gated sets: a:1 (waits for its turn)")),
            ),
            (
                vec![report(Paused, &[("a:1", Pending)]), report(Expired, &[("b:1", Removed)])],
                Some((
                    false,
                    "missing 2 of 2 images of gated sets: a:1 (the set is paused), b:1 (the deadline has passed)",
                )),
            ),
            (
                vec![report(Ready, &[("a:1", Present)]), report(SetPhase::Pulling, &[("a:1", Removed)])],
                Some((false, "missing 1 of 1 image of gated sets: a:1")),
            ),
        ] {
            let found = ImagesReady::of(&gated, &[]);
            let found = found.as_ref().map(|it| (it.is_ready, it.message.as_str()));
            assert_eq!(found, expected, "{gated:?}");
        }
        let beyond = [set("web", &["a:1"]), set("app", &["b:1"])];
        let ready = ImagesReady::of(&[ready()], &beyond).unwrap();
        let why = "2 gated sets beyond the limits of prefetch, as ImageSet shop/web: no node fetches the images";
        assert_eq!((ready.is_ready, ready.message.as_str()), (false, why));
    }

    #[test]
    fn the_message_is_bounded_in_images_and_in_length() {
        let many: Vec<String> = (0..64).map(|at| format!("app:{at:02}")).collect();
        let many: Vec<(&str, ImagePhase)> = many.iter().map(|it| (it.as_str(), ImagePhase::Pending)).collect();
        let ready = ImagesReady::of(&[report(SetPhase::Pulling, &many)], &[]).unwrap();
        assert!(ready.message.ends_with("app:08, app:09, and 54 more"), "{}", ready.message);
        let long: Vec<String> = (0..64).map(|at| format!("{}:{at}", "a".repeat(1000))).collect();
        let long: Vec<(&str, ImagePhase)> = long.iter().map(|it| (it.as_str(), ImagePhase::Pending)).collect();
        let sets: Vec<SetReport> = (0..200).map(|_| report(SetPhase::Pulling, &long)).collect();
        assert!(ImagesReady::of(&sets, &[]).unwrap().message.len() <= MESSAGE_LENGTH_MAX);
    }
}
