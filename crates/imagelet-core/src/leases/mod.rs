//! Leases, which protect an image between a request for it and its container, and the running removals. A lease starts
//! when a caller that may start a container gets the image. A lease ends when it expires, or when its pod has a new
//! container of the image for each request. A lease without a pod ends only when it expires. A lease request waits for
//! a running removal and then queries the store again. A lease prevents the removal by a collection.

mod file;
mod service;
#[cfg(test)]
mod testing;

#[cfg(test)]
pub(crate) use file::LEASES;
pub use service::LeaseService;
pub(crate) use service::Removal;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, SystemTime},
};

use crate::image::ImageId;

/// Limit of ended removals to remember. A query of the store that began before the oldest of them is repeated.
const ENDED_MAX: usize = 1024;
/// Limit of pods per leased image. A node has fewer pods.
const PODS_MAX: usize = 1024;
/// Request times are written this far ahead, so that repeated requests within this time do not write again.
pub(crate) const AHEAD_MAX: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, Default)]
pub(crate) struct Leases {
    /// The duration of a lease. Zero: there are no leases.
    pub(crate) lasts: Duration,
    /// Image id → pod uid → lease. A removal names the id without a handler. The uid of an unknown pod is empty.
    images: BTreeMap<ImageId, BTreeMap<String, Lease>>,
    pub(crate) removing: BTreeSet<ImageId>,
    /// Increases with the begin and the end of each removal.
    begun: u64,
    /// Ended removals, each with the value of `begun` at its end.
    ended: VecDeque<(u64, ImageId)>,
    /// If set, the leases on disk are unreadable, and all images count as leased until this time.
    pub(crate) all_until: Option<SystemTime>,
    /// If set, the pods of the node are unknown, and all images count as leased until this time.
    pub(crate) pods_unknown_until: Option<SystemTime>,
    /// The request time and the lease version of each image in the last write, which may still be running.
    kept: BTreeMap<ImageId, (SystemTime, u64)>,
    pub(crate) version: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// The time of the pod's first request. Only containers that are created later match the lease.
    pub(crate) since: SystemTime,
    /// The time of the pod's last request. The duration of the lease starts at this time.
    pub(crate) asked_at: SystemTime,
    /// The number of requests without a matching container.
    pub(crate) open: u32,
}

impl Leases {
    /// Whether a removal of this image is running or ran since `begun` was `mark`. If so, a query of the store that began
    /// then is repeated.
    pub(crate) fn is_overtaken(&self, id: &ImageId, mark: u64) -> bool {
        if self.removing.contains(id) {
            return true;
        }
        let forgotten = self.ended.len() == ENDED_MAX && self.ended.front().is_some_and(|(begun, _)| *begun > mark);
        forgotten || self.ended.iter().any(|(begun, ended)| *begun > mark && ended == id)
    }

    /// Leases a found image to a pod. Returns the lease version. A write of this version includes the lease.
    pub(crate) fn lease(&mut self, id: &ImageId, pod: &str, now: SystemTime) -> u64 {
        if self.lasts.is_zero() {
            return 0;
        }
        let pods = self.images.entry(id.clone()).or_default();
        let pod = if pods.len() < PODS_MAX || pods.contains_key(pod) { pod } else { "" };
        let lease = pods.entry(pod.to_owned()).or_insert(Lease { since: now, asked_at: now, open: 0 });
        if ends_at(lease, self.lasts) <= now {
            *lease = Lease { since: now, asked_at: now, open: 0 };
        }
        lease.asked_at = lease.asked_at.max(now);
        lease.open = lease.open.saturating_add(1);
        let covered = self.kept.get(id).filter(|(until, _)| *until >= now).map(|(_, version)| *version);
        covered.unwrap_or_else(|| {
            self.version += 1;
            self.version
        })
    }

    /// Counts a new container against the lease of its pod. With the last open request, the lease ends.
    pub(crate) fn serve(&mut self, id: &ImageId, pod: &str, created_at: SystemTime) {
        if pod.is_empty() {
            return;
        }
        let Some(pods) = self.images.get_mut(id) else { return };
        let Some(lease) = pods.get_mut(pod) else { return };
        // A container created at the same time may belong to a request before this lease.
        if created_at > lease.since {
            lease.open = lease.open.saturating_sub(1);
        }
        if lease.open == 0 {
            pods.remove(pod);
        }
        if pods.is_empty() {
            self.images.remove(id);
        }
    }

    pub(crate) fn until(&self, id: &ImageId, now: SystemTime) -> Option<SystemTime> {
        let of_pods = self.images.get(id).into_iter().flat_map(BTreeMap::values);
        let ends = of_pods.map(|lease| ends_at(lease, self.lasts)).max();
        ends.max(self.all_until).max(self.pods_unknown_until).filter(|ends| *ends > now)
    }

    /// Removes expired leases. A request time in the future means that the clock was set back. It is moved to now.
    pub(crate) fn tidy(&mut self, now: SystemTime) {
        let lasts = self.lasts;
        self.images.retain(|_, pods| {
            pods.retain(|_, lease| {
                lease.since = lease.since.min(now);
                lease.asked_at = lease.asked_at.min(now);
                ends_at(lease, lasts) > now
            });
            !pods.is_empty()
        });
        for all_until in [&mut self.all_until, &mut self.pods_unknown_until] {
            *all_until = all_until.map(|until| until.min(now + lasts)).filter(|until| *until > now);
        }
    }

    pub(crate) fn shift(&mut self, step: Duration) {
        for lease in self.images.values_mut().flat_map(BTreeMap::values_mut) {
            lease.asked_at += step;
        }
        for until in [&mut self.all_until, &mut self.pods_unknown_until].into_iter().flatten() {
            *until += step;
        }
    }

    /// Starts the removal of an image without a lease. Fails with the end of the lease, or with `None` during another
    /// removal of the image.
    pub(crate) fn begin_removal(&mut self, id: &ImageId, now: SystemTime) -> Result<(), Option<SystemTime>> {
        match self.until(id, now) {
            None if self.begin_ordered_removal(id) => Ok(()),
            until => Err(until),
        }
    }

    /// Starts a requested removal. Leases do not prevent it. Returns false if a removal of the image is running.
    fn begin_ordered_removal(&mut self, id: &ImageId) -> bool {
        let is_first = self.removing.insert(id.clone());
        self.begun += u64::from(is_first);
        is_first
    }

    pub(crate) fn end_removal(&mut self, id: &ImageId) {
        self.removing.remove(id);
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        // The new number is larger than the mark of every earlier query.
        self.begun += 1;
        self.ended.push_back((self.begun, id.clone()));
    }

    /// The request times to write. They are `ahead` of the real times, so that repeated requests rarely write.
    pub(crate) fn due(&mut self, ahead: Duration) -> BTreeMap<ImageId, SystemTime> {
        let last = |pods: &BTreeMap<String, Lease>| pods.values().map(|lease| lease.asked_at).max();
        let asked = self.images.iter().filter_map(|(id, pods)| Some((id.clone(), last(pods)? + ahead)));
        let due: BTreeMap<ImageId, SystemTime> = asked.collect();
        self.kept = due.iter().map(|(id, until)| (id.clone(), (*until, self.version))).collect();
        due
    }

    /// Restores leases that an earlier or another process wrote, without their pods. A time more than [`AHEAD_MAX`]
    /// ahead means that the clock was set back. At a start, such a lease begins now. Later, it is skipped.
    pub(crate) fn restore(&mut self, found: BTreeMap<ImageId, SystemTime>, now: SystemTime, at_start: bool) {
        for (id, line) in found.into_iter().filter(|(_, line)| at_start || *line <= now + AHEAD_MAX) {
            let asked_at = line.min(now);
            if self.kept.contains_key(&id) || asked_at + self.lasts <= now {
                continue;
            }
            let pods = self.images.entry(id).or_default();
            let lease = pods.entry(String::new()).or_insert(Lease { since: asked_at, asked_at, open: 1 });
            lease.asked_at = lease.asked_at.max(asked_at);
        }
    }
}

fn ends_at(lease: &Lease, lasts: Duration) -> SystemTime {
    lease.asked_at + lasts
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn leases() -> (Leases, ImageId) {
        (Leases { lasts: MINUTE, ..Leases::default() }, ImageId::new("sha256:a"))
    }

    #[test]
    fn a_lease_runs_from_the_last_asking_and_ends() {
        let (mut leases, id) = leases();
        leases.lease(&id, "pod", at(0));
        leases.lease(&id, "pod", at(30));
        assert_eq!(leases.until(&id, at(89)), Some(at(90)));
        assert_eq!(leases.until(&id, at(90)), None);
        leases.tidy(at(90));
        assert!(leases.images.is_empty());
    }

    #[test]
    fn a_pod_ends_its_lease_with_as_many_containers_as_it_asked_for() {
        let (mut leases, id) = leases();
        leases.lease(&id, "pod", at(10));
        leases.lease(&id, "pod", at(12));
        leases.serve(&id, "other", at(13));
        leases.serve(&id, "pod", at(10));
        leases.serve(&id, "pod", at(11));
        assert!(leases.until(&id, at(14)).is_some(), "the second container is not there yet");
        leases.serve(&id, "pod", at(13));
        assert_eq!(leases.until(&id, at(14)), None);
        assert!(leases.images.is_empty());
    }

    #[test]
    fn requests_add_up_while_the_lease_runs_and_a_request_after_its_end_starts_anew() {
        for (again, is_leased) in [(59, true), (60, false)] {
            let (mut leases, id) = leases();
            leases.lease(&id, "pod", at(0));
            leases.lease(&id, "pod", at(again));
            leases.serve(&id, "pod", at(61));
            assert_eq!(leases.until(&id, at(62)).is_some(), is_leased, "{again}");
        }
    }

    #[test]
    fn an_image_is_leased_until_the_last_of_its_pods_lets_it_go() {
        let (mut leases, id) = leases();
        leases.lease(&id, "late", at(20));
        leases.lease(&id, "pod", at(0));
        assert_eq!(leases.until(&id, at(30)), Some(at(80)));
    }

    #[test]
    fn beyond_the_limit_of_pods_a_lease_has_no_pod_and_runs_until_it_expires() {
        let (mut leases, id) = leases();
        for number in 0..PODS_MAX {
            leases.lease(&id, &format!("pod-{number}"), at(0));
        }
        leases.lease(&id, "pod-0", at(1));
        assert_eq!(leases.images[&id].len(), PODS_MAX, "a known pod keeps its lease");
        leases.lease(&id, "late", at(2));
        assert!(leases.images[&id].contains_key("") && !leases.images[&id].contains_key("late"));
    }

    #[test]
    fn after_a_clock_set_back_new_containers_still_end_the_lease_of_their_pod() {
        let (mut leases, id) = leases();
        leases.lease(&id, "pod", at(1000));
        leases.tidy(at(10));
        leases.serve(&id, "pod", at(20));
        assert_eq!(leases.until(&id, at(21)), None);
    }

    #[test]
    fn nobodys_lease_is_served_by_no_container() {
        let (mut leases, id) = leases();
        leases.lease(&id, "", at(10));
        leases.serve(&id, "", at(20));
        leases.serve(&id, "pod", at(20));
        assert_eq!(leases.until(&id, at(21)), Some(at(70)));
    }

    #[test]
    fn a_removal_begins_only_without_lease_and_other_removal() {
        let (mut leases, id) = leases();
        leases.lease(&id, "pod", at(0));
        assert_eq!(leases.begin_removal(&id, at(59)), Err(Some(at(60))));
        assert_eq!(leases.begin_removal(&id, at(60)), Ok(()));
        assert_eq!(leases.begin_removal(&id, at(60)), Err(None));
        assert!(!leases.begin_ordered_removal(&id));
        leases.end_removal(&id);
        assert!(leases.begin_ordered_removal(&id));
    }

    #[test]
    fn who_looked_before_a_removal_looks_again_and_who_looked_after_it_does_not() {
        let (mut leases, id) = leases();
        let (other, before) = (ImageId::new("sha256:b"), leases.begun);
        leases.begin_removal(&id, at(0)).unwrap();
        let during = leases.begun;
        assert!(leases.is_overtaken(&id, before) && leases.is_overtaken(&id, during));
        assert!(!leases.is_overtaken(&other, before));
        leases.end_removal(&id);
        assert!(leases.is_overtaken(&id, before) && leases.is_overtaken(&id, during));
        assert!(!leases.is_overtaken(&id, leases.begun));
        let after = leases.begun;
        for number in 0..ENDED_MAX {
            let id = ImageId::new(format!("sha256:{number}"));
            leases.begin_removal(&id, at(0)).unwrap();
            leases.end_removal(&id);
        }
        assert!(leases.is_overtaken(&other, after), "too long ago to know");
        assert!(!leases.is_overtaken(&other, leases.begun));
    }

    #[test]
    fn a_clock_set_back_makes_no_lease_longer() {
        let (mut leases, id) = leases();
        leases.lease(&id, "pod", at(1000));
        leases.all_until = Some(at(1000) + leases.lasts);
        leases.tidy(at(10));
        assert_eq!(leases.until(&id, at(10)), Some(at(70)));
    }

    #[test]
    fn what_is_kept_is_taken_up_by_a_restart_and_not_by_its_writer() {
        let (mut leases, id) = leases();
        let ahead = Duration::from_secs(5);
        leases.lease(&id, "pod", at(10));
        assert_eq!(leases.version, 1);
        let kept = leases.due(ahead);
        leases.lease(&id, "pod", at(15));
        assert_eq!(leases.version, 1, "the disk has it");
        leases.lease(&id, "pod", at(16));
        assert_eq!(leases.version, 2);
        leases.restore(kept.clone(), at(16), false);
        assert_eq!(leases.images[&id].len(), 1, "its own is not somebody else's");

        let mut restarted = Leases { lasts: MINUTE, ..Leases::default() };
        restarted.restore(kept.clone(), at(20), true);
        restarted.serve(&id, "pod", at(21));
        assert_eq!(restarted.until(&id, at(22)), Some(at(75)));
        let mut late = Leases { lasts: MINUTE, ..Leases::default() };
        late.restore(kept, at(75), true);
        assert!(late.images.is_empty());
    }

    #[test]
    fn a_lease_that_the_disk_has_from_the_future_ends_all_the_same() {
        let (mut leases, id) = leases();
        for now in [10, 20, 50, 70] {
            leases.restore(BTreeMap::from([(id.clone(), at(4_000_000_000))]), at(now), now == 10);
            leases.tidy(at(now));
            assert_eq!(leases.until(&id, at(now)), Some(at(70)).filter(|_| now < 70), "{now}");
        }
        assert_eq!(leases.begin_removal(&id, at(70)), Ok(()));

        // A time that another process writes ahead counts in full.
        let (mut leases, _) = self::leases();
        for now in [10, 20, 30] {
            leases.restore(BTreeMap::from([(id.clone(), at(20))]), at(now), false);
        }
        assert_eq!(leases.until(&id, at(30)), Some(at(80)));
        leases.restore(BTreeMap::from([(id.clone(), at(45))]), at(50), false);
        assert_eq!(leases.until(&id, at(50)), Some(at(105)), "it asked again");
    }

    #[test]
    fn a_request_that_the_disk_has_waits_for_no_later_write() {
        let (mut leases, id) = leases();
        let (other, ahead) = (ImageId::new("sha256:b"), Duration::from_secs(5));
        assert_eq!(leases.lease(&id, "pod", at(10)), 1);
        leases.due(ahead);
        assert_eq!(leases.lease(&other, "pod", at(12)), 2);
        assert_eq!(leases.lease(&id, "pod", at(15)), 1);
        assert_eq!(leases.lease(&id, "pod", at(16)), 3, "no write covers it");
    }

    #[test]
    fn without_a_time_there_are_no_leases() {
        let (_, id) = leases();
        let mut leases = Leases::default();
        leases.lease(&id, "pod", at(0));
        assert_eq!(leases.until(&id, at(0)), None);
    }
}
