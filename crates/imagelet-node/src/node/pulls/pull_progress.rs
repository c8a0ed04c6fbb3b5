//! The rows of a node's pulls for `events`, the dashboard and the API.

use imagelet_core::{
    image::shown_name,
    manager::{PullState, PullStatus},
    ports::{LayerState, PullEnd, PullProgress, PullRoute},
};
use tokio::time::Instant;

use crate::api::{LayerProgress, PullProgressRow, PullRetry, milliseconds_of};

const LAYERS_MAX: usize = 256;

/// The phase of a pull, as in `docs/events.md`. `is_silent`: the pull runs in a runtime, which reports no progress.
fn phase(progress: &PullProgress, is_silent: bool) -> &'static str {
    match (&progress.times.end, &progress.route) {
        (Some((_, PullEnd::Pulled)), _) => "done",
        (Some((_, PullEnd::Failed(_))), _) => "failed",
        (Some((_, PullEnd::Cancelled)), _) => "given-up",
        _ if progress.times.committing.is_some() => "committing",
        _ if progress.times.resolved.is_some() => "fetching",
        (None, Some(PullRoute::Imported)) => "asking",
        (None, Some(PullRoute::Forwarded(_) | PullRoute::ForwardedArtifact(_))) => "pulling",
        (None, None) => {
            if is_silent {
                "pulling"
            } else {
                "asking"
            }
        }
    }
}

pub(crate) fn progress_row(pull: PullStatus, is_silent: bool, now: Instant) -> PullProgressRow {
    let image = shown_name(&pull.image).into_owned();
    let progress = pull.progress;
    let Some(began) = progress.times.began.filter(|_| pull.turn.state == PullState::Running) else {
        let elapsed_ms = milliseconds_of(now.saturating_duration_since(pull.turn.since));
        let (phase, position) = ("waiting".into(), pull.turn.place.map(|place| place.position));
        return PullProgressRow { image, phase, elapsed_ms, position, ..PullProgressRow::default() };
    };
    let ((received, total), speed) = (progress.bytes(), progress.speed(now));
    let ended = progress.times.end.as_ref().map_or(now, |(at, _)| *at);
    let layers = progress.layers.iter().take(LAYERS_MAX).map(|layer| LayerProgress {
        digest: layer.digest.to_string(),
        state: match layer.state {
            None => "waiting",
            Some(LayerState::Present) => "present",
            Some(LayerState::Fetching { .. }) => "fetching",
            Some(LayerState::Done) => "done",
        }
        .into(),
        size: layer.size.0,
        received: layer.received(),
    });
    PullProgressRow {
        pull: pull.number,
        image,
        namespace: pull.pod.namespace.to_string(),
        pod: pull.pod.name.to_string(),
        phase: phase(&progress, is_silent).into(),
        manifest: progress.times.resolved.as_ref().map(|(_, manifest)| manifest.to_string()).unwrap_or_default(),
        bytes_total: (!progress.layers.is_empty()).then_some(total),
        bytes_received: received,
        bytes_per_second: speed,
        remaining_ms: speed.filter(|speed| *speed > 0).map(|speed| (total - received).saturating_mul(1000) / speed),
        elapsed_ms: milliseconds_of(ended.saturating_duration_since(began)),
        bytes_estimated: None,
        position: None,
        retry: progress.waits.retry.as_ref().and_then(PullRetry::of),
        waits: progress.awaited(true).unwrap_or_default(),
        failure: match &progress.times.end {
            Some((_, PullEnd::Failed(error))) => error.chain(),
            _ => String::new(),
        },
        removed: progress.removed.iter().cloned().map(Into::into).collect(),
        layers: layers.collect(),
        layers_hidden: progress.layers.len().saturating_sub(LAYERS_MAX) as u64,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use imagelet_core::{
        error::RuntimeError,
        events::PodIdentity,
        image::{ByteSize, Digest},
        manager::{PullTurn, QueuePlace},
        ports::{ForwardReason, PullEvent, RemovedImage},
    };

    use super::*;

    const MEGABYTE: u64 = 1_000_000;

    fn running(image: &str, mut progress: PullProgress) -> PullStatus {
        progress.times.began = Some(Instant::now());
        PullStatus {
            number: 1,
            image: image.into(),
            pod: PodIdentity::default(),
            turn: PullTurn { state: PullState::Running, since: Instant::now(), place: None },
            clients: Vec::new(),
            priority: 0,
            progress,
        }
    }

    fn row(progress: &PullProgress, is_silent: bool) -> PullProgressRow {
        progress_row(running("app:v1", progress.clone()), is_silent, Instant::now())
    }

    fn resolved(layers: usize) -> PullEvent {
        let layers = (0..layers).map(|number| (Digest::of(number.to_string().as_bytes()), ByteSize(MEGABYTE)));
        PullEvent::Resolved { manifest: Digest::of(b"m"), layers: layers.collect() }
    }

    #[test]
    fn a_pull_has_the_phase_of_its_last_event() {
        let mut progress = PullProgress::default();
        assert_eq!(["asking", "pulling"], [false, true].map(|is_silent| row(&progress, is_silent).phase));
        let forwarded = PullRoute::Forwarded(ForwardReason::SwitchedOff);
        for (event, phase, total) in [
            (PullEvent::Route(PullRoute::Imported), "asking", None),
            (resolved(2), "fetching", Some(2 * MEGABYTE)),
            (PullEvent::Committing, "committing", Some(2 * MEGABYTE)),
            (PullEvent::Route(forwarded), "pulling", None),
        ] {
            progress.apply(event, Instant::now());
            let row = row(&progress, true);
            assert_eq!((row.phase.as_str(), row.bytes_total), (phase, total));
        }
        for (end, phase, failure) in [
            (PullEnd::Pulled, "done", ""),
            (PullEnd::Failed(Arc::new(RuntimeError::other("no"))), "failed", "no"),
            (PullEnd::Cancelled, "given-up", ""),
        ] {
            progress.finish(end, Instant::now());
            let row = row(&progress, true);
            assert_eq!((row.phase.as_str(), row.failure.as_str()), (phase, failure));
        }
    }

    #[test]
    fn a_waiting_pull_has_its_place_and_no_number() {
        let place = Some(QueuePlace { position: 3, behind: 4 });
        let turn = PullTurn { state: PullState::WaitingForSlot, since: Instant::now(), place };
        let waiting = PullStatus { turn, ..running("a", PullProgress::default()) };
        let row = progress_row(waiting, false, Instant::now());
        assert_eq!((row.phase.as_str(), row.position, row.pull), ("waiting", Some(3), 0));
    }

    #[test]
    fn a_password_in_a_name_is_not_shown() {
        let pull = running("https://user:hunter2@reg.test/app", PullProgress::default());
        assert_eq!(progress_row(pull, false, Instant::now()).image, "https://[redacted]@reg.test/app");
    }

    #[test]
    fn a_pull_names_what_was_removed_for_it_and_hides_layers_beyond_a_bound() {
        let mut progress = PullProgress::default();
        let removed = RemovedImage { names: vec!["old:v1".into()], bytes: ByteSize(20 * MEGABYTE) };
        progress.apply(PullEvent::Removed(removed), Instant::now());
        progress.apply(resolved(LAYERS_MAX + 7), Instant::now());
        let row = row(&progress, false);
        assert_eq!((row.layers.len(), row.layers_hidden), (LAYERS_MAX, 7));
        let shown = serde_json::to_value(&row).expect("JSON");
        assert_eq!(shown["removed"], serde_json::json!([{ "names": ["old:v1"], "bytes": 20 * MEGABYTE }]), "{shown}");
    }
}
