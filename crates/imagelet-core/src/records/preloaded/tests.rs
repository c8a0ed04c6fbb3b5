//! What stays everybody's, and what ends that.

use std::{
    fs,
    time::{Duration, SystemTime},
};

use super::*;
use crate::records::{
    Absent, AccessProof, Evidence, Guard, ImageAccess, KubeletRecords, RecordedSecret, RecordsSettings,
    VerificationPolicy,
    faults::Faults,
    file::{RecordFile as _, file_name},
    tests::{DEFAULT, allowed, image, judged, open, open_on},
};

const ID: &str = "sha256:1";
const LOADED: &str = "docker.io/library/app:v1";
const PRIVATE: &str = "reg.io/team/app:v1";

/// The preloaded image, as it is listed after a pull under another name.
fn two_names() -> Image {
    Image { tags: vec![LOADED.into(), PRIVATE.into()], ..image(ID, LOADED) }
}

/// What happens below a root before the images are listed.
type Before = fn(&Path, &Arc<PullRecords>);

fn secret() -> ImageAccess {
    let secret = RecordedSecret { uid: "u".into(), credential_hash: "h".into(), ..RecordedSecret::default() };
    ImageAccess { kubernetes_secrets: vec![secret], ..ImageAccess::default() }
}

fn remember(records: &PullRecords, images: &[Image]) {
    records.remember_preloaded(images, &records.mark(SystemTime::now())).unwrap();
}

fn pull(records: &Arc<PullRecords>, name: &str) {
    records.intend(name).unwrap().fulfil(&ImageId::new(ID), &secret(), SystemTime::now()).unwrap();
}

/// Whether a pod without credentials may use the image under each of its names.
fn open_names(records: &PullRecords) -> [bool; 2] {
    [LOADED, PRIVATE].map(|name| judged(records, name, &two_names(), AccessProof::default()).allowed)
}

#[test]
fn a_name_stays_preloaded_until_a_pull_of_its_repository_is_recorded() {
    let record = |names: &[&str]| PulledRecord {
        mapping: names.iter().map(|name| ((*name).to_owned(), secret())).collect(),
        ..PulledRecord::default()
    };
    let app = "docker.io/library/app";
    for (loaded, pulled, repository, expected) in [
        (&[app][..], None, app, true),
        (&[app], Some(&[][..]), app, true),
        (&[app], Some(&["reg.io/team/app"]), app, true),
        (&[app], Some(&["reg.io/team/app"]), "reg.io/team/app", false),
        (&[app], Some(&["reg.io/team/app", "docker.io/library/app"]), app, false),
        // Each spelling is of the same repository.
        (&[app], Some(&["app"]), app, false),
        (&[app], None, "docker.io/library/other", false),
        (&[], None, app, false),
    ] {
        let loaded = loaded.iter().map(|name| (*name).to_owned()).collect();
        let found = is_preloaded(&loaded, pulled.map(record).as_ref(), repository);
        assert_eq!(found, expected, "{loaded:?} {pulled:?} {repository}");
    }
}

#[test]
fn a_preloaded_image_stays_everybodys_after_a_pull_with_a_secret_under_another_name_and_after_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let records = open(root.path());
    remember(&records, &[image(ID, LOADED)]);
    let intent = records.intend(PRIVATE).unwrap();
    assert_eq!(open_names(&records), [true, false], "while it is pulled");
    intent.fulfil(&ImageId::new(ID), &secret(), SystemTime::now()).unwrap();
    assert_eq!(open_names(&records), [true, false]);
    let records = open(root.path());
    assert_eq!(open_names(&records), [true, false], "after a restart");
    let mut names: Vec<_> = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["image_manager", FILE], "beside the kubelet's files");
    // Its own name is pulled with a secret: the record counts as ever.
    pull(&records, LOADED);
    assert_eq!(open_names(&records), [false, false]);
}

#[test]
fn a_preloaded_name_that_was_pulled_with_a_secret_stays_closed_when_its_record_is_dropped() {
    let (age_max, other) = (Duration::from_hours(1), "reg.io/other:v1");
    for is_unreadable in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let settings = || RecordsSettings { age_max: Some(age_max), ..RecordsSettings::new(DEFAULT) };
        let reopened = || Arc::new(PullRecords::open(root.path(), settings()).unwrap());
        let mut records = reopened();
        remember(&records, &[Image { tags: vec![LOADED.into(), other.into()], ..image(ID, LOADED) }]);
        let intent = records.intend(LOADED).unwrap();
        intent.fulfil(&ImageId::new(ID), &secret(), SystemTime::now() - 2 * age_max).unwrap();
        if is_unreadable {
            fs::write(root.path().join("image_manager/pulled").join(file_name(ID)), "{").unwrap();
            records = reopened();
        }
        pull(&records, PRIVATE);
        for records in [records, reopened()] {
            assert_eq!(open_names(&records), [false, false], "{is_unreadable}");
            let stays_open = judged(&records, other, &two_names(), AccessProof::default()).allowed;
            assert_eq!(stays_open, !is_unreadable, "it was never pulled, where the record says so");
        }
    }
}

#[test]
fn no_other_policy_and_not_the_kubelets_way_is_loosened() {
    let names = |patterns: &[&str]| {
        let list = crate::records::Allowlist::new(patterns.iter().copied()).unwrap();
        VerificationPolicy::NeverVerifyAllowlistedImages(list)
    };
    for (policy, guard, expected) in [
        (VerificationPolicy::AlwaysVerify, Guard::Image, [false, false]),
        (names(&["reg.io/other/*"]), Guard::Image, [false, false]),
        (names(&["reg.io/team/*"]), Guard::Image, [false, true]),
        (DEFAULT, Guard::Spelling, [false, false]),
        (DEFAULT, Guard::Image, [true, false]),
        (VerificationPolicy::NeverVerify, Guard::Image, [true, true]),
    ] {
        let text = format!("{policy:?} {guard:?}");
        let records = PullRecords::in_memory_with(RecordsSettings { guard, ..RecordsSettings::new(policy) });
        let records = Arc::new(records);
        remember(&records, &[image(ID, LOADED)]);
        pull(&records, PRIVATE);
        assert_eq!(open_names(&records), expected, "{text}");
    }
}

#[test]
fn an_image_that_may_have_been_pulled_is_never_remembered_as_preloaded() {
    let other = "reg.io/other:v1";
    let kubelet_intent: Before = |root, _| {
        let folder = root.join("kubelet/image_manager/pulling");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(file_name(LOADED)), PullIntent::new("app:v1").encode()).unwrap();
    };
    let cases: [(&str, Before); 6] = [
        ("its record", |_, records| pull(records, "reg.io/other:v1")),
        ("an interrupted pull", |_, records| drop(records.intend("app:v1").unwrap())),
        ("a pull whose record failed", |_, records| records.keep_unrecorded(&ImageId::new(ID), "reg.io/x:v1")),
        ("a record of the kubelet", |root, _| {
            let folder = root.join("kubelet/image_manager/pulled");
            fs::create_dir_all(&folder).unwrap();
            let record = PulledRecord { image_ref: ID.into(), ..PulledRecord::default() };
            fs::write(folder.join(file_name(ID)), record.encode()).unwrap();
        }),
        ("an intent of the kubelet", kubelet_intent),
        ("an intent of the kubelet that does not read", |root, _| {
            let folder = root.join("kubelet/image_manager/pulling");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(file_name("x")), "{").unwrap();
        }),
    ];
    for (what, before) in cases {
        let root = tempfile::tempdir().unwrap();
        let kubelet = Some(KubeletRecords::below(&root.path().join("kubelet")));
        let settings = RecordsSettings { kubelet, ..RecordsSettings::new(DEFAULT) };
        let records = Arc::new(PullRecords::open(&root.path().join("own"), settings).unwrap());
        before(root.path(), &records);
        remember(&records, &[image(ID, LOADED)]);
        assert!(locked(&records.preloaded.state).images.is_empty(), "{what}");
        remember(&records, &[image("sha256:2", other)]);
        let is_known = locked(&records.preloaded.state).images.contains_key("sha256:2");
        let is_blocked = locked(&records.preloaded.state).is_blocked;
        assert_eq!((is_known, is_blocked), (!is_blocked, what.ends_with("does not read")), "{what}");
    }
    // A pull that ended after the list was made.
    let records = Arc::new(PullRecords::in_memory());
    let mark = records.mark(SystemTime::now());
    pull(&records, PRIVATE);
    records.records.remove(ID).unwrap();
    records.remember_preloaded(&[image(ID, LOADED)], &mark).unwrap();
    assert!(locked(&records.preloaded.state).images.is_empty());
}

#[test]
fn an_image_that_is_removed_and_pulled_again_is_no_longer_preloaded() {
    let root = tempfile::tempdir().unwrap();
    let records = open(root.path());
    remember(&records, &[image(ID, LOADED)]);
    let mark = records.mark(SystemTime::now());
    assert!(records.prune(&BTreeSet::new(), &mark).1.is_empty());
    pull(&records, PRIVATE);
    assert_eq!(open_names(&records), [false, false]);
    remember(&records, &[two_names()]);
    assert_eq!(open_names(&open(root.path())), [false, false]);
}

#[test]
fn a_crash_in_a_pull_of_the_preloaded_name_ends_that_and_one_of_another_name_does_not() {
    for (name, before, after) in [
        (LOADED, [false, false], [false, false]),
        // No name of the image is that of the pull yet.
        ("app:v2", [true, true], [false, false]),
        (PRIVATE, [true, false], [true, false]),
    ] {
        let root = tempfile::tempdir().unwrap();
        let records = open(root.path());
        remember(&records, &[image(ID, LOADED)]);
        std::mem::forget(records.intend(name).unwrap());
        let records = open(root.path());
        assert_eq!(open_names(&records), before, "{name}: before the image was looked for");
        let listed = Image { tags: vec![LOADED.into(), name.into()], ..image(ID, LOADED) };
        records.resolve_open_intents(&[listed], SystemTime::now(), Absent::Stays).unwrap();
        assert_eq!(open_names(&open(root.path())), after, "{name}");
    }
}

#[test]
fn a_file_that_is_not_written_is_written_later_and_one_that_does_not_read_opens_nothing() {
    let (root, faults) = (tempfile::tempdir().unwrap(), Faults::new());
    let records = open_on(&faults, root.path(), Guard::Image);
    faults.fail_in(1);
    records.remember_preloaded(&[image(ID, LOADED)], &records.mark(SystemTime::now())).unwrap_err();
    assert!(!root.path().join(FILE).exists());
    faults.fail_in(0);
    remember(&records, &[]);
    let read_only = PullRecords::open_read_only(root.path(), DEFAULT).unwrap();
    let before = fs::read(root.path().join(FILE)).unwrap();
    remember(&read_only, &[image("sha256:2", PRIVATE)]);
    assert_eq!(fs::read(root.path().join(FILE)).unwrap(), before, "a read-only state is not written");
    pull(&records, PRIVATE);
    assert_eq!(open_names(&open(root.path())), [true, false]);
    for text in ["{", "[]", "{\"sha256:1\": 5}"] {
        fs::write(root.path().join(FILE), text).unwrap();
        let records = open(root.path());
        assert_eq!(open_names(&records), [false, false], "{text}");
        assert!(allowed(&records, "reg.io/new:v1", "sha256:9"), "other images are as before");
    }
}

#[test]
fn the_memory_of_preloaded_images_is_bounded() {
    let records = PullRecords::in_memory();
    let images: Vec<Image> = (0..IMAGES_MAX + 5).map(|number| image(&format!("sha256:{number}"), LOADED)).collect();
    remember(&records, &images);
    let tags = (0..NAMES_MAX + 5).map(|number| format!("reg.io/app{number}:v1")).collect();
    remember(&records, &[Image { tags, ..image("sha256:0", LOADED) }]);
    let known = locked(&records.preloaded.state).images.clone();
    assert_eq!((known.len(), known["sha256:0"].len()), (IMAGES_MAX, NAMES_MAX));
    assert!(matches!(records.evidence(LOADED, &images[IMAGES_MAX + 1]), Evidence::Begun(false)));
}
