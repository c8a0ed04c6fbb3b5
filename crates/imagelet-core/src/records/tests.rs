//! What the records promise, over real files.

use serde_json::Value;

use super::*;
use crate::{
    image::{ByteSize, ImageSpec, ImageUser},
    testing::vectors,
};

const DEFAULT: VerificationPolicy = VerificationPolicy::NeverVerifyPreloadedImages;

fn open(root: &Path) -> Arc<PullRecords> {
    Arc::new(PullRecords::open(root, DEFAULT).unwrap())
}

fn node_wide() -> ImageAccess {
    ImageAccess { node_pods_accessible: true, ..ImageAccess::default() }
}

fn allowed(records: &PullRecords, image: &str, id: &str) -> bool {
    let nobody = || Ok::<_, std::convert::Infallible>(Asker::default());
    records.judge(image, &ImageId::new(id), nobody).unwrap().unwrap().allowed
}

fn image(id: &str, tag: &str) -> Image {
    Image {
        id: ImageId::new(id),
        tags: vec![tag.to_owned()],
        digests: Vec::new(),
        size: ByteSize(1),
        user: ImageUser::Unset,
        spec: ImageSpec::default(),
        pinned: false,
    }
}

#[test]
fn every_vector_of_who_must_pull_holds() {
    let cases = vectors("pull-records-must-attempt.json");
    let mut judged = 0;
    for case in &cases {
        let (input, expected) = (&case["input"], &case["expected"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let allowlist: Vec<String> = serde_json::from_value(input["allowlist"].clone()).unwrap_or_default();
        let policy = match input["policy"].as_str() {
            Some("NeverVerify") => VerificationPolicy::NeverVerify,
            Some("NeverVerifyPreloadedImages") => DEFAULT,
            Some("NeverVerifyAllowlistedImages") => VerificationPolicy::NeverVerifyAllowlistedImages(
                Allowlist::new(allowlist.iter().map(String::as_str)).unwrap(),
            ),
            Some("AlwaysVerify") => VerificationPolicy::AlwaysVerify,
            other => panic!("{other:?}"),
        };
        let image_ref = text(&input["image_ref"]);
        // Without an id the manager does not ask: the image is not here.
        if image_ref.is_empty() {
            assert_eq!(expected["must_pull"], true);
            continue;
        }
        let root = tempfile::tempdir().unwrap();
        drop(open(root.path()));
        let folder = root.path().join("image_manager");
        for record in input["pulled_records"].as_array().unwrap() {
            let (name, content) = match record["raw"].as_str() {
                Some(raw) => (file_name(&image_ref), raw.to_owned()),
                None => (file_name(&text(&record["imageRef"])), record.to_string()),
            };
            std::fs::write(folder.join("pulled").join(name), content).unwrap();
        }
        for intent in input["pull_intents"].as_array().unwrap() {
            let image = text(intent);
            std::fs::write(folder.join("pulling").join(file_name(&image)), encode_intent(&image)).unwrap();
        }
        let records = PullRecords::open(root.path(), policy).unwrap();
        let looked_up = std::cell::Cell::new(false);
        let asker = || {
            looked_up.set(true);
            match input["credential_lookup_error"].as_str() {
                Some(error) => Err(error.to_owned()),
                None => Ok(Asker {
                    secrets: serde_json::from_value(input["pod_secrets"].clone()).unwrap(),
                    service_account: serde_json::from_value(input["pod_service_account"].clone()).unwrap(),
                }),
            }
        };
        let (image, id) = (text(&input["image"]), ImageId::new(&image_ref));
        let verdict = records.judge(&image, &id, asker);
        let place = &case["name"];
        assert_eq!(Some(looked_up.get()), expected["credentials_looked_up"].as_bool(), "{place}");
        match verdict {
            Err(error) => assert_eq!(Some(error.as_str()), expected["error"].as_str(), "{place}"),
            Ok(None) => panic!("{place}: the records are on"),
            Ok(Some(verdict)) => {
                assert_eq!(Some(!verdict.allowed), expected["must_pull"].as_bool(), "{place}");
                assert_eq!(Some(verdict.outcome), expected["metric_result"].as_str(), "{place}");
                assert_eq!(Some(verdict.learned.is_some()), expected["record_written"].as_bool(), "{place}");
                if let Some(learned) = verdict.learned {
                    records.learn(&image, &id, &learned, SystemTime::now()).unwrap();
                    let after = PullRecords::open(root.path(), DEFAULT).unwrap().record(&id).unwrap().mapping;
                    let wanted = serde_json::from_value(expected["credential_mapping_after"].clone()).unwrap();
                    assert_eq!(after, wanted, "{place}");
                }
            }
        }
        judged += 1;
    }
    assert_eq!(cases.len(), 45);
    assert!(judged >= 43, "{judged}");
}

#[test]
fn an_intent_is_on_disk_until_the_last_of_its_pulls_is_given_up() {
    let root = tempfile::tempdir().unwrap();
    let records = open(root.path());
    let first = records.intend("app:v1").unwrap();
    let second = records.intend("app:v1").unwrap();
    drop(first);
    assert_eq!(open(root.path()).counts(), (1, 0));
    drop(second);
    assert_eq!(open(root.path()).counts(), (0, 0));
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
fn a_pull_that_finished_without_a_word_asks_for_credentials_under_every_spelling() {
    let root = tempfile::tempdir().unwrap();
    let intent = open(root.path()).intend("busybox:1").unwrap();
    let unfinished = open(root.path()).intend("reg.io/never:v1").unwrap();
    // The process dies: no guard is dropped.
    std::mem::forget((intent, unfinished));
    let records = open(root.path());
    let images = [image("sha256:1", "docker.io/library/busybox:1")];
    let recovered = records.recover(&images, SystemTime::now()).unwrap();
    assert_eq!(recovered, Recovered { finished: 1, unfinished: 1 });
    assert_eq!(open(root.path()).counts(), (1, 1));
    assert!(!allowed(&records, "busybox:1", "sha256:1"));
    assert!(!allowed(&records, "docker.io/library/busybox:1", "sha256:1"));
}

#[test]
fn pruning_takes_what_is_gone_and_older_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let records = open(root.path());
    let until = SystemTime::now();
    let (before, after) = (until - std::time::Duration::from_millis(1), until + std::time::Duration::from_millis(1));
    for (id, updated) in [("gone", before), ("here", before), ("gone-but-new", after), ("same", until)] {
        records.learn("app:v1", &ImageId::new(id), &node_wide(), updated).unwrap();
    }
    let (removed, failures) = records.prune(&BTreeSet::from([ImageId::new("here")]), until);
    assert_eq!((removed, failures.len()), (1, 0));
    assert!(records.record(&ImageId::new("gone")).is_none());
    assert_eq!(open(root.path()).counts(), (0, 3));
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
    let rewritten = std::fs::read_to_string(pulled.join(file_name("old"))).unwrap();
    assert!(rewritten.contains("v1beta1"), "{rewritten}");
    assert!(pulled.join(file_name("broken")).exists());
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
