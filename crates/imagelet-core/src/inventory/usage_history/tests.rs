//! Tests of the usage history alone: images that arrive, are used, disappear and come back.

use std::fmt;

use super::*;
use crate::{
    image::{ByteSize, ImageSpec, ImageUser},
    inventory::{
        detect::Fresh,
        observation_window::ObservationWindow,
        usage_history::image_usage::{ImageOrigin, PullCost},
    },
};

const HOUR: Duration = Duration::from_hours(1);

fn at(minutes: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(500_000) + Duration::from_mins(minutes)
}

impl UsageHistory {
    pub(crate) fn requests(&self) -> impl fmt::Debug {
        let pending: Vec<_> = self.pending.iter().map(|(key, pending)| (key, Some(pending.at))).collect();
        let listed: Vec<_> = self.images.iter().map(|(key, usage)| (key, usage.times.requested_at)).collect();
        (pending, listed)
    }
}

#[derive(Default)]
struct Node {
    memory: UsageHistory,
    images: BTreeMap<ImageKey, Image>,
    /// The last pass changed the ledger.
    changed: bool,
}

fn key(name: &str) -> ImageKey {
    let id = name.replace(['/', ':'], "-");
    ImageKey::new(ImageId::new(format!("sha256:{id}")), String::new())
}

impl Node {
    fn has(&mut self, names: &[&str]) {
        self.images = names
            .iter()
            .map(|name| {
                let image = Image {
                    id: key(name).id().clone(),
                    tags: vec![(*name).to_owned()],
                    digests: Vec::new(),
                    size: ByteSize(1),
                    user: ImageUser::Unset,
                    spec: ImageSpec::default(),
                    pinned: false,
                    artifact: None,
                };
                (key(name), image)
            })
            .collect();
    }

    /// A pass that finds containers `(image, is new, created)`.
    fn pass(&mut self, containers: &[(&str, bool, u64)], now: SystemTime) {
        let mut users = Users::new();
        for (name, is_fresh, created) in containers {
            let uses = users.entry(key(name)).or_default();
            uses.by.push("default/web/app".to_owned());
            uses.has_containers = true;
            let fresh = Fresh { created: Some(at(*created)), user: Some("default/web".to_owned()) };
            uses.fresh.extend(is_fresh.then_some(fresh));
        }
        let images: Vec<Arc<Image>> = self.images.values().cloned().map(Arc::new).collect();
        let pass = PassTimes { detected_at: now, now, wall: now, settling: Duration::from_mins(1), is_doubtful: true };
        self.changed = self.memory.apply(&images, &users, &pass);
    }

    fn of(&self, name: &str) -> &ImageUsage {
        &self.memory.images[&key(name)]
    }

    fn restart(&mut self, last_pass: SystemTime) {
        let ledger = ledger(&self.memory, last_pass);
        self.memory = UsageHistory { is_forgetful: self.memory.is_forgetful, ..UsageHistory::default() };
        self.memory.restore(ledger);
    }
}

fn ledger(memory: &UsageHistory, last_pass: SystemTime) -> Ledger {
    let window = ObservationWindow { last_pass: Some(last_pass), ..ObservationWindow::default() };
    Ledger::new(window, memory.images.clone())
}

#[test]
fn the_container_that_follows_an_ensure_is_the_same_use() {
    let mut node = Node::default();
    node.has(&["app:1"]);
    node.pass(&[], at(0));
    let reported = UseReport { user: Some("default/web".to_owned()), pulled: None, ..UseReport::default() };
    node.memory.used(&key("app:1"), reported, 1, at(1));
    node.pass(&[("app:1", true, 2)], at(5));
    assert_eq!(node.of("app:1").history.uses, 1);
    assert_eq!(node.of("app:1").user.as_deref(), Some("default/web"));
    // Another that nobody announced is another use; one that was there before is none.
    node.pass(&[("app:1", false, 2), ("app:1", true, 6)], at(10));
    node.pass(&[("app:1", false, 2), ("app:1", false, 6)], at(15));
    assert_eq!(node.of("app:1").history.uses, 2);
    assert_eq!(node.of("app:1").history.returns, 0, "it never lay idle");
}

#[test]
fn a_prefetch_is_no_use_and_the_first_use_ends_it() {
    let mut node = Node::default();
    let prefetch = || UseReport { is_prefetch: true, user: Some("fleet/set".into()), ..UseReport::default() };
    node.has(&["app:1", "web:1", "job:1"]);
    node.memory.used(&key("app:1"), prefetch(), 0, at(0));
    node.memory.used(&key("web:1"), prefetch(), 0, at(0));
    node.memory.used(&key("web:1"), UseReport::default(), 1, at(0));
    node.memory.used(&key("job:1"), UseReport::default(), 1, at(0));
    node.memory.used(&key("job:1"), prefetch(), 0, at(0));
    node.pass(&[], at(1));
    let prefetched = |node: &Node| ["app:1", "web:1", "job:1"].map(|name| node.of(name).prefetched);
    assert_eq!(prefetched(&node), [true, false, false], "a use before or after the prefetch counts");
    assert_eq!((node.of("app:1").history.uses, node.of("app:1").times.last_used), (0, None));
    assert_eq!(["app:1", "web:1", "job:1"].map(|name| node.of(name).user.clone()), [None, None, None]);
    node.restart(at(1));
    node.pass(&[], at(2));
    assert!(node.of("app:1").prefetched, "the ledger has it");
    node.pass(&[("app:1", true, 3)], at(4));
    assert!(!node.of("app:1").prefetched);
    node.memory.used(&key("app:1"), prefetch(), 0, at(5));
    assert!(!node.of("app:1").prefetched, "it was used before");
}

#[test]
fn a_nightly_job_has_its_rhythm_in_the_history() {
    let mut node = Node::default();
    node.has(&["job:1", "other:1"]);
    for day in 0..6 {
        let start = day * 24 * 60;
        node.pass(&[("job:1", true, start)], at(start));
        node.pass(&[], at(start + 10));
        for hour in 1..24 {
            node.pass(&[], at(start + hour * 60));
        }
    }
    let job = node.of("job:1");
    assert_eq!((job.history.uses, job.history.returns), (6, 5));
    assert_eq!(job.history.interval, (24 * HOUR).as_secs());
}

#[test]
fn an_image_that_comes_back_keeps_its_history() {
    let mut node = Node::default();
    node.has(&["app:1"]);
    node.pass(&[("app:1", true, 0)], at(0));
    node.pass(&[], at(60));
    node.has(&[]);
    node.pass(&[], at(120));
    assert_eq!(node.of("app:1").times.gone, Some(at(120)));
    assert_eq!(node.memory.present().count(), 0);
    let pulled = PullCost { bytes: ByteSize(7), duration: Duration::from_secs(1), at: at(300) };
    node.memory.used(&key("app:1"), UseReport { pulled: Some(pulled), ..UseReport::default() }, 1, at(300));
    node.has(&["app:1"]);
    node.pass(&[], at(301));
    let app = node.of("app:1");
    assert_eq!((app.history.uses, app.history.returns), (2, 1));
    assert_eq!((app.origin, app.pulled, app.times.gone), (ImageOrigin::Pulled, Some(pulled), None));
    assert_eq!(app.times.first_seen, Some(at(301)), "it is protected as a new one");
    assert_eq!(node.of("app:1").times.last_used, Some(at(300)));
}

#[test]
fn for_the_kubelet_an_image_that_comes_back_is_new() {
    for (is_forgetful, last_used) in [(false, Some(at(0))), (true, None)] {
        let mut node = Node::default();
        node.memory.is_forgetful = is_forgetful;
        node.has(&["app:1"]);
        node.pass(&[("app:1", true, 0)], at(0));
        node.has(&[]);
        node.pass(&[], at(120));
        node.has(&["app:1"]);
        node.pass(&[], at(300));
        let record = node.of("app:1");
        assert_eq!((record.times.first_seen, record.times.last_used), (Some(at(300)), last_used), "{is_forgetful}");
    }
}

#[test]
fn a_restart_counts_no_running_container_anew() {
    let mut node = Node::default();
    node.has(&["app:1", "job:1"]);
    node.pass(&[("app:1", true, 0)], at(0));
    node.restart(at(0));
    // To a new process every container is new.
    node.pass(&[("app:1", true, 0), ("job:1", true, 7)], at(10));
    assert_eq!((node.of("app:1").history.uses, node.of("job:1").history.uses), (1, 1));
    assert_eq!(node.of("job:1").times.begun, Some(at(7)));
}

#[test]
fn a_listed_image_of_unknown_age_is_new() {
    let mut node = Node::default();
    node.has(&["app:1"]);
    node.memory.images.insert(key("app:1"), ImageUsage::default());
    node.pass(&[], at(0));
    node.pass(&[], at(60));
    assert_eq!(node.of("app:1").times.first_seen, Some(at(0)));
}

#[test]
fn taking_over_a_node_learns_from_its_containers_and_records() {
    let mut node = Node::default();
    node.memory.restore(Ledger::default());
    node.memory.adopt(key("old:1").id(), Some(at(100)));
    node.has(&["job:1", "old:1", "app:1"]);
    // Three exited containers of a job, a day apart, and one that says nothing of when.
    let day = 24 * 60;
    node.pass(&[("job:1", true, 2 * day), ("job:1", true, 0), ("job:1", true, day)], at(3 * day));
    let job = node.of("job:1");
    assert_eq!((job.history.uses, job.history.returns, job.times.first_seen), (3, 2, Some(at(0))));
    assert_eq!((node.of("old:1").origin, node.of("old:1").times.first_seen), (ImageOrigin::Adopted, Some(at(100))));
    assert_eq!((node.of("app:1").origin, node.of("app:1").times.first_seen), (ImageOrigin::Found, Some(at(3 * day))));
}

#[test]
fn what_another_manager_has_on_record_later_is_adopted_and_no_older_for_that() {
    let mut node = Node::default();
    node.has(&["app:1", "web:1"]);
    node.pass(&[], at(0));
    node.memory.adopt(key("app:1").id(), None);
    node.pass(&[], at(5));
    assert_eq!((node.of("app:1").origin, node.of("app:1").times.first_seen), (ImageOrigin::Adopted, Some(at(0))));
    assert_eq!(node.of("web:1").origin, ImageOrigin::Found);
    assert!(node.changed, "a restart has to know it");
    // Two unknown callers remove it and bring it back.
    node.has(&["web:1"]);
    node.pass(&[], at(10));
    node.has(&["app:1", "web:1"]);
    node.pass(&[], at(15));
    assert_eq!(node.of("app:1").origin, ImageOrigin::Found, "the one that was adopted is gone");
}

#[test]
fn images_that_a_runtime_forgot_to_list_are_as_old_as_before() {
    let names: Vec<String> = (0..20).map(|number| format!("app:{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let forgotten = |is_forgetful: bool, restarts: bool, back: &[&str], until: u64| {
        let mut node = Node::default();
        node.memory.is_forgetful = is_forgetful;
        node.has(&names);
        node.pass(&[("app:0", true, 0)], at(0));
        node.pass(&[], at(60));
        node.has(&[]);
        node.pass(&[], at(120));
        if restarts {
            node.restart(at(120));
        }
        node.pass(&[], at(125));
        node.has(back);
        node.pass(&[], at(until));
        let dated = node.memory.images.values().filter(|usage| usage.times.requested_at == Some(at(until))).count();
        (node.of("app:0").times.first_seen, node.of("app:0").times.last_used, dated)
    };
    for restarts in [false, true] {
        assert_eq!(forgotten(false, restarts, &names, 130), (Some(at(0)), Some(at(0)), 20), "{restarts}");
        // As many as that are not pulled between two passes; one or two may be missing for good.
        assert_eq!(forgotten(false, restarts, &names[..18], 130), (Some(at(0)), Some(at(0)), 18), "{restarts}");
        assert_eq!(forgotten(false, restarts, &names[..17], 130), (Some(at(130)), Some(at(0)), 0), "{restarts}");
        assert_eq!(forgotten(false, restarts, &names[..1], 130), (Some(at(130)), Some(at(0)), 0), "{restarts}");
        assert_eq!(forgotten(false, restarts, &names, 190), (Some(at(190)), Some(at(0)), 0), "{restarts}");
        // For the kubelet an image that comes back is new.
        assert_eq!(forgotten(true, restarts, &names, 130).0, Some(at(130)), "{restarts}");
    }
}

#[test]
fn no_image_is_forgotten_because_a_runtime_lists_none() {
    let mut node = Node::default();
    let names: Vec<String> = (0..REMOVED_IMAGES_MAX + 50).map(|number| format!("app:{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    node.has(&names);
    node.pass(&[], at(0));
    node.has(&[]);
    node.pass(&[], at(5));
    node.pass(&[], at(10));
    node.has(&names);
    node.pass(&[], at(15));
    assert_eq!(node.memory.present().count(), REMOVED_IMAGES_MAX + 50);
    assert!(node.memory.images.values().all(|usage| usage.times.first_seen == Some(at(0))));
}

#[test]
fn an_old_version_is_known_until_it_is_asked_for_again() {
    let mut node = Node::default();
    node.has(&["shop/web:1", "shop/api:1"]);
    node.pass(&[("shop/web:1", true, 0)], at(0));
    node.has(&["shop/web:1", "shop/web:2", "shop/api:1"]);
    node.pass(&[("shop/web:1", false, 0)], at(10));
    assert!(!node.of("shop/web:1").history.superseded, "nobody uses the newer one yet");
    node.pass(&[("shop/web:2", true, 20)], at(20));
    assert!(node.of("shop/web:1").history.superseded);
    assert!(!node.of("shop/web:2").history.superseded && !node.of("shop/api:1").history.superseded);
    node.pass(&[("shop/web:2", false, 20), ("shop/web:1", true, 30)], at(30));
    assert!(!node.of("shop/web:1").history.superseded, "rolled back");
}

#[test]
fn the_names_of_repositories_are_cut_where_the_tag_begins() {
    let mut node = Node::default();
    node.has(&["host:5000/team/app:v1", "host:5000/bare"]);
    let of = |name: &str| repositories(&node.images[&key(name)]).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(of("host:5000/team/app:v1"), ["host:5000/team/app"]);
    assert_eq!(of("host:5000/bare"), ["host:5000/bare"]);
}

#[test]
fn what_is_remembered_has_bounds() {
    let mut node = Node::default();
    for number in 0..PENDING_MAX + 10 {
        node.memory.used(&key(&format!("never:{number}")), UseReport::default(), 1, at(0));
    }
    assert_eq!(node.memory.pending.len(), PENDING_MAX);
    let names: Vec<String> = (0..REMOVED_IMAGES_MAX + 50).map(|number| format!("ci:{number}")).collect();
    node.has(&names.iter().map(String::as_str).collect::<Vec<_>>());
    node.pass(&[], at(20));
    assert!(node.memory.pending.is_empty(), "waited for long enough");
    node.has(&["ci:none"]);
    node.pass(&[], at(40));
    assert_eq!(node.memory.images.len(), REMOVED_IMAGES_MAX + 1);
    assert!(node.changed);
    node.pass(&[], at(40) + REMOVED_AGE_MAX + HOUR);
    assert_eq!(node.memory.images.len(), 1);
    let reported = UseReport { user: Some("x".repeat(USER_LENGTH_MAX + 1)), pulled: None, ..UseReport::default() };
    node.memory.used(&key("a:1"), reported, 1, at(0));
    assert_eq!(node.memory.pending[&key("a:1")].reported.user, None);
}

#[test]
fn two_memories_of_one_node_become_one() {
    let mut node = Node::default();
    node.has(&["a:1", "b:1"]);
    node.pass(&[], at(0));
    let others = {
        let mut other = Node::default();
        other.has(&["a:1", "c:1"]);
        other.pass(&[("a:1", true, 5), ("c:1", true, 5)], at(5));
        ledger(&other.memory, at(7))
    };
    node.memory.merge(others);
    let a = node.of("a:1");
    assert_eq!((a.times.first_seen, a.times.last_used, a.history.uses), (Some(at(0)), Some(at(7)), 1));
    assert_eq!(node.of("c:1").history.uses, 1);
}

#[test]
fn nothing_is_left_in_the_future() {
    let mut node = Node::default();
    node.has(&["a:1"]);
    node.pass(&[("a:1", true, 100)], at(100));
    node.memory.map_times(|time| time.min(at(10)));
    let a = node.of("a:1");
    assert!([a.times.first_seen, a.times.last_used, a.times.begun].iter().all(|time| *time == Some(at(10))));
}
