//! Tests of the pull records over real files.

mod failed_writes;
pub(crate) mod faults;
mod vectors;

use std::{collections::BTreeSet, convert::Infallible, time::Duration};

use super::{faults::Faults, file::file_name, *};
use crate::image::{ByteSize, ImageSpec, ImageUser};

pub(super) const DEFAULT: VerificationPolicy = VerificationPolicy::NeverVerifyPreloadedImages;

impl PullRecords {
    /// The numbers of intents and of records.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.intents.count(), self.records.count())
    }

    pub(crate) fn record(&self, id: &ImageId) -> Option<Arc<PulledRecord>> {
        self.records.find(id.as_str()).ok().flatten()
    }
}

pub(super) fn open(root: &Path) -> Arc<PullRecords> {
    Arc::new(PullRecords::open(root, DEFAULT).unwrap())
}

pub(super) fn open_on(faults: &Faults, root: &Path, guard: Guard) -> Arc<PullRecords> {
    let settings = RecordsSettings { guard, ..RecordsSettings::new(DEFAULT) };
    Arc::new(PullRecords::open_on(Arc::new(faults.clone()), root, settings, false).unwrap())
}

pub(super) fn node_wide() -> ImageAccess {
    ImageAccess { node_pods_accessible: true, ..ImageAccess::default() }
}

pub(super) fn judged(records: &PullRecords, image: &str, found: &Image, proof: AccessProof) -> Verdict {
    let evidence = records.evidence(image, found);
    records.judge(image, &evidence, SystemTime::now(), || Ok::<_, Infallible>(proof)).unwrap().unwrap()
}

/// Whether a pod without credentials may use a present image under this one name.
pub(super) fn allowed(records: &PullRecords, name: &str, id: &str) -> bool {
    judged(records, name, &image(id, name), AccessProof::default()).allowed
}

pub(super) fn image(id: &str, tag: &str) -> Image {
    Image {
        id: ImageId::new(id),
        tags: vec![tag.to_owned()],
        digests: Vec::new(),
        size: ByteSize(1),
        user: ImageUser::Unset,
        spec: ImageSpec::default(),
        pinned: false,
        artifact: None,
    }
}

fn files(root: &Path, folder: &str) -> usize {
    std::fs::read_dir(root.join("image_manager").join(folder)).unwrap().count()
}

#[test]
fn an_intent_is_on_disk_until_the_last_of_its_pulls_is_given_up() {
    let root = tempfile::tempdir().unwrap();
    let records = open(root.path());
    let first = records.intend("app:v1").unwrap();
    let second = records.intend("app:v1").unwrap();
    first.withdraw().unwrap();
    assert_eq!(open(root.path()).counts(), (1, 0));
    second.withdraw().unwrap();
    assert_eq!(open(root.path()).counts(), (0, 0));
}

#[test]
fn a_pull_that_was_cut_off_guards_what_it_may_still_bring_until_that_was_looked_for() {
    let root = tempfile::tempdir().unwrap();
    let records = open(root.path());
    let found = image("sha256:1", "reg.io/app:v1");
    let now = SystemTime::now();
    for name in ["reg.io/app:v1", "reg.io/gone:v1"] {
        drop(records.intend(name).unwrap());
    }
    // A pull of the same name that brings another image does not resolve the first pull.
    let other = records.intend("reg.io/app:v1").unwrap();
    other.fulfil(&ImageId::new("sha256:2"), &node_wide(), now).unwrap();
    assert!(records.has_open_intents());
    assert!(!allowed(&records, "reg.io/app:v1", "sha256:1"));
    let settled = records.resolve_open_intents(std::slice::from_ref(&found), now, Absent::RemovedAfterChecks).unwrap();
    assert_eq!(settled, Recovered { finished: 1, unfinished: 1 });
    assert_eq!(records.counts(), (1, 2));
    assert!(!allowed(&records, "reg.io/app:v1", "sha256:1"));
    records.resolve_open_intents(std::slice::from_ref(&found), now, Absent::RemovedAfterChecks).unwrap();
    assert_eq!((records.counts(), records.has_open_intents()), ((0, 2), false));
    assert!(allowed(&records, "reg.io/gone:v1", "sha256:3"));
}

#[test]
fn a_pull_that_is_given_up_does_not_open_what_a_crashed_pull_of_the_same_name_brought() {
    let root = tempfile::tempdir().unwrap();
    // The process dies: no guard is dropped.
    std::mem::forget(open(root.path()).intend("reg.io/app:v1").unwrap());
    let records = open(root.path());
    records.intend("reg.io/app:v1").unwrap().withdraw().unwrap();
    assert_eq!(records.counts(), (1, 0));
    assert!(!allowed(&records, "reg.io/app:v1", "sha256:1"), "no right to it is proved");
    assert!(!allowed(&open(root.path()), "reg.io/app:v1", "sha256:1"));
}

#[test]
fn the_only_owner_of_a_store_takes_back_what_never_came_and_guards_what_did() {
    let root = tempfile::tempdir().unwrap();
    for name in ["reg.io/app:v1", "reg.io/gone:v1"] {
        drop(open(root.path()).intend(name).unwrap());
    }
    let (records, found) = (open(root.path()), image("sha256:1", "reg.io/app:v1"));
    let settled =
        records.resolve_open_intents(std::slice::from_ref(&found), SystemTime::now(), Absent::Removed).unwrap();
    assert_eq!(settled, Recovered { finished: 1, unfinished: 1 });
    assert_eq!(open(root.path()).counts(), (0, 1));
    assert!(!allowed(&records, "reg.io/app:v1", "sha256:1"));
}

#[test]
fn a_fulfilled_intent_is_a_record_after_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let records = open(root.path());
    let intent = records.intend("app:v1").unwrap();
    assert!(!allowed(&records, "app:v1", "sha256:1"), "an image that is being pulled is not preloaded");
    intent.fulfil(&ImageId::new("sha256:1"), &node_wide(), SystemTime::now()).unwrap();
    let again = open(root.path());
    assert_eq!(again.counts(), (0, 1));
    assert!(allowed(&again, "app:other-tag", "sha256:1"));
    assert!(!allowed(&again, "other", "sha256:1"));
}

#[test]
fn an_image_that_is_being_pulled_is_guarded_under_each_of_its_names() {
    let root = tempfile::tempdir().unwrap();
    let records = open(root.path());
    let intent = records.intend("reg.io/app:v1").unwrap();
    let digest = format!("reg.io/app@sha256:{}", "a".repeat(64));
    let found = Image { digests: vec![digest.clone()], ..image("sha256:1", "reg.io/app:v1") };
    for name in ["reg.io/app:v1", &digest, "sha256:1", "reg.io/other:v1"] {
        assert!(!judged(&records, name, &found, AccessProof::default()).allowed, "{name}");
    }
    assert!(allowed(&records, "reg.io/app:v2", "sha256:2"), "another tag is another image");
    intent.withdraw().unwrap();
    assert!(allowed(&records, "reg.io/app:v1", "sha256:1"));
}

#[test]
fn a_pull_that_finished_without_a_word_asks_for_credentials_under_every_spelling() {
    let root = tempfile::tempdir().unwrap();
    let intent = open(root.path()).intend("busybox:1").unwrap();
    let unfinished = open(root.path()).intend("reg.io/never:v1").unwrap();
    // The process dies: no guard is dropped.
    std::mem::forget((intent, unfinished));
    let records = open(root.path());
    let images = [image("sha256:1", "docker.io/library/busybox:1")];
    assert!(!judged(&records, "docker.io/library/busybox:1", &images[0], AccessProof::default()).allowed);
    let recovered = records.resolve_open_intents(&images, SystemTime::now(), Absent::Stays).unwrap();
    assert_eq!(recovered, Recovered { finished: 1, unfinished: 1 });
    assert_eq!(open(root.path()).counts(), (1, 1));
    assert!(!allowed(&records, "busybox:1", "sha256:1"));
    assert!(!allowed(&records, "docker.io/library/busybox:1", "sha256:1"));
}

#[test]
fn pruning_takes_what_is_gone_and_older_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let records = open_on(&Faults::new(), root.path(), Guard::Spelling);
    let until = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let (before, after) = (until - Duration::from_millis(1), until + Duration::from_millis(1));
    for (id, updated) in [("gone", before), ("here", before), ("gone-but-new", after), ("same", until)] {
        records.learn("app:v1", &ImageId::new(id), &node_wide(), updated).unwrap();
    }
    let (removed, failures) = records.prune(&BTreeSet::from([ImageId::new("here")]), &records.mark(until));
    assert_eq!((removed, failures.len()), (1, 0));
    assert!(records.record(&ImageId::new("gone")).is_none());
    assert_eq!(open(root.path()).counts(), (0, 3));
}

#[test]
fn all_records_of_one_pruning_are_removed_before_one_sync_of_their_folder() {
    let (root, faults) = (tempfile::tempdir().unwrap(), Faults::new());
    let records = open_on(&faults, root.path(), Guard::Image);
    for id in ["one", "two", "here"] {
        records.learn("app:v1", &ImageId::new(id), &node_wide(), SystemTime::UNIX_EPOCH).unwrap();
    }
    let here = BTreeSet::from([ImageId::new("here")]);
    let pruned = || {
        let (effects, syncs) = (faults.effects(), faults.syncs().len());
        let (removed, failures) = records.prune(&here, &records.mark(SystemTime::now()));
        let synced: Vec<usize> = faults.syncs()[syncs..].iter().map(|at| at - effects).collect();
        (removed, failures.iter().map(ToString::to_string).collect::<Vec<_>>(), synced)
    };
    // Changes: two files, their folder.
    assert_eq!(pruned(), (2, vec![], vec![3]), "else a power cut restores a record");
    assert_eq!(pruned(), (0, vec![], vec![]), "nothing was removed");
    records.learn("app:v1", &ImageId::new("three"), &node_wide(), SystemTime::UNIX_EPOCH).unwrap();
    faults.fail_in(2);
    assert_eq!(pruned(), (1, vec!["could not durably remove the pull record of `three`".to_owned()], vec![]));
}

#[test]
fn what_is_pulled_after_the_mark_outlives_the_pruning_even_when_nothing_new_is_learnt() {
    let root = tempfile::tempdir().unwrap();
    let records = open(root.path());
    let [again, idle] = ["again", "idle"].map(ImageId::new);
    let now = SystemTime::now();
    for id in [&again, &idle] {
        records.learn("app:v1", id, &node_wide(), now).unwrap();
    }
    let mark = records.mark(now + Duration::from_secs(1));
    // Listed as missing, pulled again with the same credentials: the record does not change. The clock is set back.
    records.learn("app:v1", &again, &node_wide(), now - Duration::from_hours(1)).unwrap();
    assert_eq!(records.prune(&BTreeSet::new(), &mark).0, 1);
    assert_eq!(records.prune(&BTreeSet::new(), &mark).0, 0, "a pass may be repeated with the same list");
    assert!(records.record(&again).is_some());
    assert!(records.record(&idle).is_none());
    assert_eq!(records.prune(&BTreeSet::new(), &records.mark(now + Duration::from_secs(2))).0, 1);
}

#[test]
fn an_older_version_is_rewritten_and_an_unreadable_file_is_kept() {
    let root = tempfile::tempdir().unwrap();
    drop(open(root.path()));
    let pulled = root.path().join("image_manager/pulled");
    let old = r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1alpha1","lastUpdatedTime":null,"imageRef":"old"}"#;
    std::fs::write(pulled.join(file_name("old")), old).unwrap();
    std::fs::write(pulled.join(file_name("broken")), "{").unwrap();
    std::fs::write(pulled.join(format!("{}.tmp", file_name("half"))), "{").unwrap();
    let records = open(root.path());
    assert_eq!(records.counts(), (0, 2));
    assert!(!allowed(&records, "app", "broken"));
    assert!(allowed(&records, "app", "preloaded"), "what one file says is about one image");
    let rewritten = std::fs::read_to_string(pulled.join(file_name("old"))).unwrap();
    assert!(rewritten.contains("v1beta1"), "{rewritten}");
    records.prune(&BTreeSet::new(), &records.mark(SystemTime::now()));
    assert!(pulled.join(file_name("broken")).exists());
    // A client that proves its access repairs the record.
    records.learn("app", &ImageId::new("broken"), &node_wide(), SystemTime::now()).unwrap();
    assert!(allowed(&records, "app", "broken"));
}

#[tokio::test]
async fn a_record_that_is_repaired_by_hand_is_read_again_and_keeps_its_clients() {
    let root = tempfile::tempdir().unwrap();
    drop(open(root.path()));
    let path = root.path().join("image_manager/pulled").join(file_name("sha256:1"));
    let (id, now) = (ImageId::new("sha256:1"), SystemTime::now());
    open(root.path()).learn("app:v1", &id, &node_wide(), now).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for is_looked_up in [true, false] {
        std::fs::write(&path, "{").unwrap();
        let records = open(root.path());
        let found = image("sha256:1", "app:v1");
        assert!(matches!(records.latest_evidence("app:v1", &found).await, Evidence::Unreadable));
        std::fs::write(&path, &whole).unwrap();
        if is_looked_up {
            assert!(matches!(records.latest_evidence("app:v1", &found).await, Evidence::Record(_)));
        } else {
            records.learn("web:v1", &id, &node_wide(), now).unwrap();
            assert_eq!(records.record(&id).unwrap().mapping.len(), 2, "that of the file and the new one");
        }
    }
}

#[test]
fn an_intent_that_cannot_be_read_guards_the_image_it_is_named_for() {
    let root = tempfile::tempdir().unwrap();
    drop(open(root.path()));
    std::fs::write(root.path().join("image_manager/pulling").join(file_name("reg.io/app:v1")), "{").unwrap();
    let records = open(root.path());
    let found = image("sha256:1", "reg.io/app:v1");
    for name in ["reg.io/app:v1", "app"] {
        let verdict = judged(&records, name, &found, AccessProof::default());
        assert_eq!((verdict.allowed, verdict.result), (false, Some(CheckResult::Error)), "{name}");
    }
    assert!(allowed(&records, "reg.io/other", "sha256:2"));
}

#[test]
fn a_record_that_cannot_be_written_rejects_every_client_until_it_is() {
    let root = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    let records = open_on(&faults, root.path(), Guard::Image);
    let id = ImageId::new("sha256:1");
    let digest = format!("reg.io/app@sha256:{}", "a".repeat(64));
    // Its tag has moved to a newer image.
    let found =
        Image { tags: vec!["reg.io/app:stable".into()], digests: vec![digest.clone()], ..image("sha256:1", "") };
    let intent = records.intend("reg.io/app:v1").unwrap();
    faults.fail_in(1);
    intent.fulfil(&id, &node_wide(), SystemTime::now()).unwrap_err();
    let guarded = |records: &PullRecords| {
        [&digest, "reg.io/app:stable"].iter().all(|name| !judged(records, name, &found, AccessProof::default()).allowed)
    };
    assert!(guarded(&records));
    // The next pull of the name brings another image, and withdraws only its own intent.
    let next = records.intend("reg.io/app:v1").unwrap();
    next.fulfil(&ImageId::new("sha256:2"), &node_wide(), SystemTime::now()).unwrap();
    assert!(guarded(&records));
    // It survives a restart, too.
    assert!(guarded(&open(root.path())));
    let recovered = open(root.path());
    recovered.resolve_open_intents(std::slice::from_ref(&found), SystemTime::now(), Absent::Stays).unwrap();
    assert!(guarded(&recovered));
    assert_eq!(recovered.record(&id).unwrap().mapping.len(), 0);

    std::fs::remove_file(root.path().join("image_manager/pulled").join(file_name("sha256:1"))).unwrap();
    // A check writes the record, which no client opens without credentials; a proof adds it.
    for _ in 0..2 {
        let absent = Absent::RemovedAfterChecks;
        records.resolve_open_intents(std::slice::from_ref(&found), SystemTime::now(), absent).unwrap();
    }
    assert!(guarded(&records) && records.record(&id).is_some());
    assert_eq!((files(root.path(), "pulling"), files(root.path(), "pulled")), (0, 2));
    records.learn("reg.io/app:v1", &id, &node_wide(), SystemTime::now()).unwrap();
    assert!(!guarded(&records));
}

#[test]
fn a_process_that_ends_between_any_two_changes_of_the_disk_opens_the_image_to_no_client() {
    let secret = RecordedSecret { uid: "s".into(), credential_hash: "h".into(), ..RecordedSecret::default() };
    let access = ImageAccess { kubernetes_secrets: vec![secret], ..ImageAccess::default() };
    let (found, now) = (image("sha256:1", "reg.io/app:v1"), SystemTime::now());
    let mut pulls = 0;
    for change in 1.. {
        let root = tempfile::tempdir().unwrap();
        let faults = Faults::new();
        let records = open_on(&faults, root.path(), Guard::Image);
        faults.end_in(change);
        let intended = records.intend("reg.io/app:v1");
        let is_pulled = intended.is_ok();
        if let Ok(intent) = intended {
            let _ = intent.fulfil(&found.id, &access, now);
        }
        let is_over = !faults.has_ended();
        faults.end();
        drop(records);
        if is_pulled {
            pulls += 1;
            let records = open(root.path());
            assert!(!allowed(&records, "reg.io/app:v1", "sha256:1"), "before the change {change} is recovered");
            records.resolve_open_intents(std::slice::from_ref(&found), now, Absent::Stays).unwrap();
            assert!(!allowed(&records, "reg.io/app:v1", "sha256:1"), "after it is");
            assert_eq!(records.counts(), (0, 1), "change {change}");
        }
        if is_over {
            // Written, in place, durable: twice; then the intent goes.
            assert_eq!((change, pulls), (8, 5));
            break;
        }
    }
}

#[test]
fn an_image_removed_before_it_was_recorded_is_forgotten() {
    let root = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    let records = open_on(&faults, root.path(), Guard::Image);
    let intent = records.intend("app:v1").unwrap();
    faults.fail_in(1);
    intent.fulfil(&ImageId::new("sha256:1"), &node_wide(), SystemTime::now()).unwrap_err();
    assert_eq!(records.counts(), (2, 0));
    records.prune(&BTreeSet::new(), &records.mark(SystemTime::now()));
    for _ in 0..2 {
        let none: [Image; 0] = [];
        records.resolve_open_intents(&none, SystemTime::now(), Absent::RemovedAfterChecks).unwrap();
    }
    assert_eq!(records.counts(), (0, 0));
    assert!(allowed(&records, "app:v1", "sha256:1"));
}

#[test]
fn records_are_found_by_the_process_that_wrote_them_and_by_the_next() {
    let root = tempfile::tempdir().unwrap();
    let records = open(root.path());
    let names: Vec<String> = (0..5).map(|number| format!("reg.io/app{number}:v1")).collect();
    let intents: Vec<Intent> = names.iter().map(|name| records.intend(name).unwrap()).collect();
    for name in &names {
        assert!(!allowed(&records, name, "sha256:y"), "{name}");
        assert!(!judged(&records, "sha256:x", &image("sha256:x", name), AccessProof::default()).allowed, "{name}");
    }
    assert!(allowed(&records, "reg.io/preloaded:v1", "sha256:p"));
    for (intent, name) in intents.into_iter().zip(&names) {
        intent.fulfil(&ImageId::new(name), &node_wide(), SystemTime::now()).unwrap();
    }
    for records in [records, open(root.path())] {
        for name in &names {
            assert!(allowed(&records, name, name), "{name}");
            assert!(!allowed(&records, "other", name), "{name}");
        }
    }
}

#[test]
fn a_record_past_its_age_asks_for_proof_and_one_proof_renews_no_other() {
    let settings = RecordsSettings { age_max: Some(Duration::from_hours(1)), ..RecordsSettings::new(DEFAULT) };
    let records = PullRecords::in_memory_with(settings);
    let (id, start) = (ImageId::new("sha256:1"), SystemTime::now());
    let secret = |name: &str| RecordedSecret { name: name.into(), credential_hash: name.into(), ..Default::default() };
    let access = |name: &str| ImageAccess { kubernetes_secrets: vec![secret(name)], ..ImageAccess::default() };
    let allows = |name: &str, now| {
        let evidence = records.evidence("app:v1", &image("sha256:1", "app:v1"));
        let proof = AccessProof { secrets: vec![secret(name)], ..AccessProof::default() };
        records.judge("app:v1", &evidence, now, || Ok::<_, Infallible>(proof)).unwrap().unwrap().allowed
    };
    for name in ["a", "b"] {
        records.learn("app:v1", &id, &access(name), start).unwrap();
    }
    let later = start + Duration::from_mins(61);
    assert!(allows("a", start + Duration::from_mins(59)) && !allows("a", later) && !allows("b", later));
    records.learn("app:v1", &id, &access("a"), later).unwrap();
    assert!(allows("a", later) && !allows("b", later));
}

#[test]
fn a_step_of_the_clock_makes_no_record_live_longer() {
    let settings = RecordsSettings { age_max: Some(Duration::from_hours(2)), ..RecordsSettings::new(DEFAULT) };
    let records = PullRecords::in_memory_with(settings);
    let start = SystemTime::UNIX_EPOCH + Duration::from_hours(50 * 365 * 24);
    records.learn("app:v1", &ImageId::new("sha256:1"), &node_wide(), start).unwrap();
    let allows = |now| {
        let evidence = records.evidence("app:v1", &image("sha256:1", "app:v1"));
        records
            .judge("app:v1", &evidence, now, || Ok::<_, Infallible>(AccessProof::default()))
            .unwrap()
            .unwrap()
            .allowed
    };
    let (hour, year, nanosecond) = (Duration::from_hours(1), Duration::from_hours(365 * 24), Duration::from_nanos(1));
    for (now, is_allowed) in [
        (start, true),
        (start - Duration::from_mins(4), true),
        (start - CLOCK_SLACK, true),
        (start - CLOCK_SLACK - nanosecond, false),
        (start + hour, true),
        (start + 2 * hour, true),
        (start + 2 * hour + nanosecond, false),
        (start + year, false),
        (start - hour, false),
        (start - year, false),
        // A clock that is right again finds the record.
        (start + hour, true),
    ] {
        assert_eq!(allows(now), is_allowed, "{now:?}");
    }
    records.learn("app:v1", &ImageId::new("sha256:1"), &node_wide(), start - year).unwrap();
    assert!(allows(start - year) && !allows(start), "a new proof counts by the clock of its time");
}

#[test]
fn folders_and_files_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    let records = open(root.path());
    records.learn("app", &ImageId::new("id"), &node_wide(), SystemTime::now()).unwrap();
    let mode = |path: &str| std::fs::metadata(root.path().join(path)).unwrap().permissions().mode() & 0o777;
    for folder in ["image_manager", "image_manager/pulling", "image_manager/pulled"] {
        assert_eq!(mode(folder), 0o700, "{folder}");
    }
    assert_eq!(mode(&format!("image_manager/pulled/{}", file_name("id"))), 0o600);
}

#[test]
fn a_pull_that_ends_in_good_order_leaves_nothing_for_the_next_of_its_name() {
    let root = tempfile::tempdir().unwrap();
    let records = open(root.path());
    records.intend("app:v1").unwrap().withdraw().unwrap();
    records.intend("app:v1").unwrap().withdraw().unwrap();
    assert_eq!(files(root.path(), "pulling"), 0, "given up twice");
    let intent = records.intend("app:v1").unwrap();
    intent.fulfil(&ImageId::new("sha256:1"), &node_wide(), SystemTime::now()).unwrap();
    records.intend("app:v1").unwrap().withdraw().unwrap();
    assert_eq!(files(root.path(), "pulling"), 0, "finished, then given up");
}

#[test]
fn what_a_check_resolves_is_shown_at_once() {
    let root = tempfile::tempdir().unwrap();
    drop(open(root.path()).intend("app:v1").unwrap());
    let (records, metrics) = (open(root.path()), Arc::new(Metrics::new()));
    records.export_to(Arc::clone(&metrics));
    let shows = |intents: usize, written: usize| {
        let shown = metrics.render();
        [(&INTENTS, intents), (&RECORDS, written)]
            .iter()
            .all(|(family, value)| shown.contains(&format!("\n{} {value}\n", family.name)))
    };
    assert!(shows(1, 0), "as it was left");
    records.resolve_open_intents(&[image("sha256:1", "app:v1")], SystemTime::now(), Absent::Removed).unwrap();
    assert!(shows(0, 1), "{}", metrics.render());
}

#[test]
fn pruning_names_a_record_that_it_cannot_read_and_keeps_it() {
    let root = tempfile::tempdir().unwrap();
    drop(open(root.path()));
    let path = root.path().join("image_manager/pulled").join(file_name("sha256:1"));
    std::fs::write(&path, "no record").unwrap();
    let records = open(root.path());
    let (removed, failures) = records.prune(&BTreeSet::new(), &records.mark(SystemTime::now()));
    assert_eq!((removed, failures.len(), path.exists()), (0, 1, true), "{failures:?}");
}
