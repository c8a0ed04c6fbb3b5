//! The documents of the dashboard and the HTTP API: the disk with its history, the queue, running pulls.

use serde::{Deserialize, Serialize};

use super::{
    events::PullProgressRow,
    types::{HeldBackRow, ImageRow, LastCollection, OpenCircuitRow, PullRow},
};

api_documents! {
    DiskRequest {
        /// Most samples of the history.
        #[cfg_attr(test, schemars(range(max = 1440)))]
        samples: Option<u64>,
    }
    /// The disk of the images: how full it is, what holds it, and when it is full.
    Disk {
        mountpoint: String,
        /// Zero where the disk is not visible from the daemon.
        capacity: u64,
        available: u64,
        used_percent: Option<u8>,
        /// Collection starts above this share.
        high_percent: u8,
        /// Collection ends at this share.
        low_percent: u8,
        /// Listed sizes of images that a container or a mount uses; shared layers count in each.
        in_use_size: u64,
        /// Listed sizes of unused images that are pinned.
        pinned_size: u64,
        /// Listed sizes of the other images.
        unused_size: u64,
        /// Bytes an hour since the last fall of the usage; absent before half an hour is known.
        growth_per_hour: Option<i64>,
        /// Hours until the high threshold at this growth, zero above it; absent where it is not reached within 30 days.
        hours_to_high: Option<f64>,
        /// Usage by time, the oldest first: the last 24 hours of a daemon.
        history: Vec<DiskSample>,
        last_collection: Option<LastCollection>,
        /// `enforce`, or `shadow`: selected images are reported and not removed.
        gc_mode: String,
    }
    DiskSample {
        /// Seconds since 1970, UTC.
        at: u64,
        /// Used bytes of the disk.
        used: u64,
    }
    PullsRequest {}
    /// The running and waiting pulls with their layers.
    RunningPulls {
        pulls: Vec<PullProgressRow>,
    }
    QueueRequest {}
    /// What waits, and for what.
    Queue {
        pulls: Vec<PullRow>,
        /// Images whose next pull is in back-off.
        held_back: Vec<HeldBackRow>,
        /// Registries that are not asked at present.
        registries: Vec<OpenCircuitRow>,
    }
    /// A page of images, in the order of their ids.
    ImagePage {
        images: Vec<ImageRow>,
        /// All images of the node.
        total: u64,
        /// `after` of the next page; absent on the last one.
        next: Option<String>,
    }
    /// The registries that are not asked at present.
    OpenCircuits {
        registries: Vec<OpenCircuitRow>,
    }
}

impl Disk {
    /// Class, name and bytes of each part of the disk. Images may share layers, so their sum ends at the used space.
    pub fn shares(&self) -> [(&'static str, &'static str, u64); 5] {
        let mut left = self.capacity.saturating_sub(self.available);
        let mut take = |size: u64| {
            let taken = size.min(left);
            left -= taken;
            taken
        };
        let (in_use, pinned, unused) = (take(self.in_use_size), take(self.pinned_size), take(self.unused_size));
        [
            ("in-use", "images in use", in_use),
            ("pinned", "pinned images", pinned),
            ("unused", "unused images", unused),
            ("other", "other files", left),
            ("free", "free", self.available.min(self.capacity)),
        ]
    }

    /// When the disk will reach the high threshold, as a text. `None`: no sample of the disk usage exists.
    pub(crate) fn forecast(&self) -> Option<String> {
        let high = self.high_percent;
        Some(match (self.hours_to_high, self.growth_per_hour) {
            (Some(hours), _) if hours <= 0.0 => format!("above {high}%"),
            (Some(hours), _) if hours < 1.0 => format!("{high}% in less than an hour"),
            (Some(hours), _) if hours < 48.0 => format!("{high}% in about {hours:.0} h"),
            (Some(hours), _) => format!("{high}% in about {:.0} d", hours / 24.0),
            (None, Some(_)) => format!("{high}% not within 30 days"),
            (None, None) if self.history.is_empty() => return None,
            (None, None) => "known after 30 minutes".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_a_disk_add_up_to_its_capacity() {
        let disk =
            Disk { capacity: 100, available: 30, in_use_size: 50, pinned_size: 15, unused_size: 40, ..Disk::default() };
        let sizes: Vec<u64> = disk.shares().iter().map(|(.., size)| *size).collect();
        assert_eq!(sizes, [50, 15, 5, 0, 30]);
        let sizes: Vec<u64> = Disk { unused_size: 1, ..disk }.shares().iter().map(|(.., size)| *size).collect();
        assert_eq!(sizes, [50, 15, 1, 4, 30]);
    }

    #[test]
    fn a_forecast_is_no_more_exact_than_it_can_be() {
        let disk = |hours_to_high, growth_per_hour| Disk {
            high_percent: 85,
            hours_to_high,
            growth_per_hour,
            history: vec![DiskSample::default()],
            ..Disk::default()
        };
        for (hours, growth, expected) in [
            (None, None, "known after 30 minutes"),
            (Some(0.0), None, "above 85%"),
            (None, Some(1), "85% not within 30 days"),
            (Some(0.0), Some(1), "above 85%"),
            (Some(0.4), Some(1), "85% in less than an hour"),
            (Some(5.2), Some(1), "85% in about 5 h"),
            (Some(100.0), Some(1), "85% in about 4 d"),
        ] {
            assert_eq!(disk(hours, growth).forecast().as_deref(), Some(expected));
        }
        assert_eq!(Disk { history: Vec::new(), ..disk(None, None) }.forecast(), None, "a command without a daemon");
    }
}
