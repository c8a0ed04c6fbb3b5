//! The vectors of records, each case over real files.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use serde_json::Value;

use super::{
    file::{Filed, file_name},
    tests::{DEFAULT, image, open, open_as_kubelet},
    *,
};
use crate::{
    image::{ByteSize, ImageSpec, ImageUser},
    testing::vectors,
};

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().map(|all| all.iter().map(text).collect()).unwrap_or_default()
}

fn time(value: &Value) -> Option<SystemTime> {
    value.as_str().map(|time| time.parse::<Timestamp>().expect("a time").into())
}

fn record_of(value: &Value) -> PulledRecord {
    let mapping: Option<BTreeMap<String, ImageAccess>> =
        serde_json::from_value(value["credentialMapping"].clone()).expect("a mapping");
    PulledRecord {
        image_ref: text(&value["imageRef"]),
        updated: time(&value["lastUpdatedTime"]),
        mapping: mapping.unwrap_or_default(),
    }
}

#[test]
fn every_vector_of_who_must_pull_holds() {
    let cases = vectors("pull-records-must-attempt.json");
    let (mut cached, mut judged) = (0, 0);
    for case in &cases {
        // What does not go through memory in the vector is asked of the disk here; the answer has to be the same.
        let through_memory = case["input"]["through_memory_cache"].as_bool().expect("a bool");
        for holds_all in if through_memory { vec![true] } else { vec![true, false] } {
            must_attempt_vector_holds(case, holds_all);
            judged += 1;
        }
        cached += usize::from(through_memory);
    }
    assert_eq!((cases.len(), cached, judged), (45, 3, 87));
}

fn must_attempt_vector_holds(case: &Value, holds_all: bool) {
    let (input, expected) = (&case["input"], &case["expected"]);
    let place = format!("{}, memory: {holds_all}", case["name"]);
    let policy = match input["policy"].as_str() {
        Some("NeverVerify") => VerificationPolicy::NeverVerify,
        Some("NeverVerifyPreloadedImages") => DEFAULT,
        Some("NeverVerifyAllowlistedImages") => VerificationPolicy::NeverVerifyAllowlistedImages(
            Allowlist::new(texts(&input["allowlist"]).iter().map(String::as_str)).unwrap(),
        ),
        Some("AlwaysVerify") => VerificationPolicy::AlwaysVerify,
        other => panic!("{other:?}"),
    };
    let image_ref = text(&input["image_ref"]);
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
    for intent in texts(&input["pull_intents"]) {
        std::fs::write(folder.join("pulling").join(file_name(&intent)), Begun::new(&intent).encode()).unwrap();
    }
    if !holds_all {
        for subfolder in ["pulled", "pulling"] {
            std::fs::write(folder.join(subfolder).join(file_name("another")), "{").unwrap();
        }
    }
    let settings = RecordsSettings { guard: Guard::Spelling, ..RecordsSettings::new(policy) };
    let records = PullRecords::open(root.path(), settings).unwrap();
    let asked = text(&input["image"]);
    let found = image(&image_ref, &asked);
    if holds_all && expected["metric_result"] != "error" {
        assert!(records.recall(&asked, &found).is_some(), "{place}: no disk is read");
    }
    let evidence = records.look_up(&asked, &found);
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
    let verdict = records.judge(&asked, &evidence, SystemTime::now(), asker);
    assert_eq!(Some(looked_up.get()), expected["credentials_looked_up"].as_bool(), "{place}");
    match verdict {
        Err(error) => {
            assert_eq!(Some(error.as_str()), expected["error"].as_str(), "{place}");
            assert_eq!((&expected["must_pull"], &expected["metric_result"]), (&true.into(), &"error".into()));
        }
        Ok(None) => panic!("{place}: the records are on"),
        Ok(Some(verdict)) => {
            assert!(expected["error"].is_null(), "{place}");
            assert_eq!(Some(!verdict.allowed), expected["must_pull"].as_bool(), "{place}");
            assert_eq!(verdict.outcome, expected["metric_result"].as_str(), "{place}");
            assert_eq!(Some(verdict.learned.is_some()), expected["record_written"].as_bool(), "{place}");
            if let Some(learned) = verdict.learned {
                let id = ImageId::new(&image_ref);
                records.learn(&asked, &id, &learned, SystemTime::now()).unwrap();
                let after = open(root.path()).record(&id).unwrap().mapping.clone();
                let wanted = serde_json::from_value(expected["credential_mapping_after"].clone()).unwrap();
                assert_eq!(after, wanted, "{place}");
            }
        }
    }
}

#[test]
fn every_vector_of_the_life_of_records_holds() {
    let cases = vectors("pull-records-lifecycle.json");
    for case in &cases {
        let (input, expected) = (&case["input"], &case["expected"]);
        let place = text(&case["name"]);
        match input["op"].as_str() {
            Some("record_pull_intent") => intent_vector_holds(input, expected),
            Some("record_image_pulled") => pulled_vector_holds(&place, input, expected),
            Some("startup") => startup_vector_holds(&place, input, expected),
            Some("prune") => prune_vector_holds(&place, input, expected),
            Some("migrate") => migrate_vector_holds(&place, input, expected),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(cases.len(), 37);
}

fn running(records: &PullRecords, image: &str) -> u64 {
    records.state().running.get(image).copied().unwrap_or_default() as u64
}

fn intent_vector_holds(input: &Value, expected: &Value) {
    let root = tempfile::tempdir().unwrap();
    let records = open_as_kubelet(root.path());
    let asked = text(&input["image"]);
    let before = input["intent_counter_before"].as_u64().unwrap();
    let mut intents: Vec<Intent> = (0..before).map(|_| records.intend(&asked).unwrap()).collect();
    intents.push(records.intend(&asked).unwrap());
    assert_eq!(Some(running(&records, &asked)), expected["intent_counter_after"].as_u64());
    let path = root.path().join("image_manager/pulling").join(text(&expected["intent_file"]));
    let written = Begun::decode(&std::fs::read(path).unwrap()).unwrap().content;
    assert_eq!(written.image, text(&expected["intent"]["image"]));
}

fn pulled_vector_holds(place: &str, input: &Value, expected: &Value) {
    let root = tempfile::tempdir().unwrap();
    let records = open_as_kubelet(root.path());
    let existing: Vec<PulledRecord> = input["existing_records"].as_array().unwrap().iter().map(record_of).collect();
    for record in &existing {
        records.records.write(record.clone()).unwrap();
    }
    let (asked, id) = (text(&input["image"]), ImageId::new(text(&input["image_ref"])));
    let before = input["intent_counter_before"].as_u64().unwrap();
    let mut intents: Vec<Intent> = (0..before).map(|_| records.intend(&asked).unwrap()).collect();
    let access: ImageAccess = serde_json::from_value(input["credentials"].clone()).unwrap();
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
    intents.pop().unwrap().fulfil(&id, &access, now).unwrap();
    assert_eq!(Some(running(&records, &asked)), expected["intent_counter_after"].as_u64(), "{place}");
    let file = root.path().join("image_manager/pulling").join(file_name(&asked));
    assert_eq!(Some(!file.exists()), expected["intent_file_removed"].as_bool(), "{place}");

    // Told by the files alone.
    let after = open_as_kubelet(root.path());
    let record = after.record(&id).unwrap();
    let wanted = record_of(&expected["record"]);
    assert_eq!((&record.image_ref, &record.mapping), (&wanted.image_ref, &wanted.mapping), "{place}");
    assert_eq!(Some(record.updated == Some(now)), expected["last_updated_time_bumped"].as_bool(), "{place}");
    for other in existing.iter().filter(|other| other.image_ref != wanted.image_ref) {
        assert_eq!(*after.record(&ImageId::new(&other.image_ref)).unwrap(), *other, "{place}");
    }
}

fn startup_vector_holds(place: &str, input: &Value, expected: &Value) {
    let root = tempfile::tempdir().unwrap();
    let before = open_as_kubelet(root.path());
    for image in texts(&input["intents"]) {
        before.intents.write(Begun::new(image)).unwrap();
    }
    let existing: Vec<PulledRecord> = input["existing_records"].as_array().unwrap().iter().map(record_of).collect();
    for record in &existing {
        before.records.write(record.clone()).unwrap();
    }
    let images: Vec<Image> = input["runtime_images"]
        .as_array()
        .unwrap()
        .iter()
        .map(|image| Image {
            id: ImageId::new(text(&image["id"])),
            tags: texts(&image["repo_tags"]),
            digests: texts(&image["repo_digests"]),
            size: ByteSize(1),
            user: ImageUser::Unset,
            spec: ImageSpec::default(),
            pinned: false,
        })
        .collect();
    let records = open_as_kubelet(root.path());
    records.recover(&images, SystemTime::now()).unwrap();
    let after = open_as_kubelet(root.path());
    let mut left: Vec<String> = after.intents.list().whole.iter().map(|begun| begun.image.clone()).collect();
    left.sort();
    assert_eq!(left, texts(&expected["intents_left"]), "{place}");
    assert_eq!(record_ids(&after), texts(&expected["record_image_refs"]), "{place}");
    for record in after.records.list().whole {
        match existing.iter().find(|existing| existing.image_ref == record.image_ref) {
            Some(existing) => assert_eq!(*record, *existing, "{place}"),
            None => assert_eq!(
                Some(!record.mapping.is_empty()),
                expected["new_records_have_credentials"].as_bool(),
                "{place}"
            ),
        }
    }
    let afterwards = &expected["must_pull_afterwards_policy_NeverVerifyPreloadedImages_no_credentials"];
    for asked in afterwards.as_array().into_iter().flatten() {
        let name = text(&asked["image"]);
        let verdict = super::tests::judged(&records, &name, &images[0], Asker::default());
        assert_eq!(Some(!verdict.allowed), asked["must_pull"].as_bool(), "{place}: {name}");
    }
}

fn record_ids(records: &PullRecords) -> Vec<String> {
    let ids: BTreeSet<String> = records.records.list().whole.iter().map(|it| it.image_ref.clone()).collect();
    ids.into_iter().collect()
}

fn prune_vector_holds(place: &str, input: &Value, expected: &Value) {
    let root = tempfile::tempdir().unwrap();
    let records = open_as_kubelet(root.path());
    for record in input["existing_records"].as_array().unwrap() {
        records.records.write(record_of(record)).unwrap();
    }
    let present = texts(&input["image_list"]).iter().map(ImageId::new).collect();
    let mark = records.mark(time(&input["until"]).unwrap());
    let (_, failures) = records.prune(&present, &mark);
    assert!(failures.is_empty(), "{place}: {failures:?}");
    assert_eq!(record_ids(&records), texts(&expected["record_image_refs"]), "{place}");
}

#[test]
fn every_vector_of_collections_on_records_holds() {
    let cases = vectors("gc-prune-records.json");
    assert_eq!(cases.len(), 7);
    for case in &cases {
        let (place, input) = (text(&case["name"]), &case["input"]);
        let root = tempfile::tempdir().unwrap();
        let records = open_as_kubelet(root.path());
        for record in input["records"].as_array().unwrap() {
            let image_ref = text(&record["image_ref"]);
            let document = serde_json::json!({
                "imageRef": image_ref, "lastUpdatedTime": record["last_updated"],
                "credentialMapping": {"reg.io/a": {"nodePodsAccessible": true}},
            });
            records.records.write(record_of(&document)).unwrap();
            let file = record["file"].as_str().map_or_else(|| file_name(&image_ref), str::to_owned);
            assert!(root.path().join("image_manager/pulled").join(&file).exists(), "{place}: {file}");
        }
        let remaining = texts(&input["remaining_images"]).iter().map(ImageId::new).collect();
        let mark = records.mark(time(&input["gc_start"]).unwrap());
        let (pruned, failures) = records.prune(&remaining, &mark);
        assert!(failures.is_empty(), "{place}: {failures:?}");
        let (kept, wanted) = (record_ids(&records), texts(&case["expected"]["records_kept_unordered"]));
        assert_eq!(kept.iter().collect::<BTreeSet<_>>(), wanted.iter().collect::<BTreeSet<_>>(), "{place}");
        assert_eq!(pruned, input["records"].as_array().unwrap().len() - wanted.len(), "{place}");
    }
}

fn migrate_vector_holds(place: &str, input: &Value, expected: &Value) {
    let root = tempfile::tempdir().unwrap();
    drop(open(root.path()));
    let folder = |name: &str| root.path().join("image_manager").join(name);
    let (intents, records) = (texts(&input["intent_versions"]), texts(&input["record_versions"]));
    let put = |folder_name: &str, key: &str, content: Vec<u8>, version: &str| {
        let content = String::from_utf8(content).unwrap().replace("v1beta1", version);
        let path = folder(folder_name).join(file_name(key));
        std::fs::write(&path, &content).unwrap();
        (path, content)
    };
    let mut before = Vec::new();
    for (index, version) in intents.iter().enumerate() {
        let key = format!("reg.io/a{index}:v1");
        before.push(put("pulling", &key, Begun::new(key.as_str()).encode(), version));
    }
    for (index, version) in records.iter().enumerate() {
        let id = format!("sha256:{index}");
        let record = serde_json::json!({
            "imageRef": id, "lastUpdatedTime": "2024-10-21T12:26:40Z",
            "credentialMapping": {"reg.io/a": {"nodePodsAccessible": true}},
        });
        before.push(put("pulled", &id, record_of(&record).encode(), version));
    }
    drop(open(root.path()));
    let wanted: Vec<String> =
        texts(&expected["intent_versions"]).into_iter().chain(texts(&expected["record_versions"])).collect();
    for ((path, content), (version, wanted)) in before.iter().zip(intents.iter().chain(&records).zip(&wanted)) {
        let after = std::fs::read_to_string(path).unwrap();
        assert_eq!(after, content.replace(version, wanted), "{place}");
    }
    assert_eq!(wanted.len(), before.len());
}

#[test]
fn every_gauge_vector_holds() {
    let cases = vectors("pull-records-gauges.json");
    let mut steps = 0;
    for case in &cases {
        let (input, expected) = (&case["input"], &case["expected"]);
        let number = |name: &str| usize::try_from(input[name].as_u64().unwrap()).unwrap();
        let settings = RecordsSettings {
            intents_max: number("memory_max_intents"),
            records_max: number("memory_max_records"),
            ..RecordsSettings::new(DEFAULT)
        };
        let root = tempfile::tempdir().unwrap();
        let records = Arc::new(PullRecords::open(root.path(), settings).unwrap());
        let metrics = Arc::new(Metrics::new());
        records.show_in(Arc::clone(&metrics));
        for (op, after) in texts(&input["ops"]).iter().zip(expected["after_each"].as_array().unwrap()) {
            carry_out(&records, op);
            let shown = metrics.render();
            for (name, value) in after.as_object().unwrap() {
                assert!(shown.contains(&format!("\n{name} {value}\n")), "{op}: {name} {value} in {shown}");
            }
            steps += 1;
        }
    }
    assert_eq!((cases.len(), steps), (2, 15));
}

/// Does what a gauge vector names, by what the manager and the collector call.
fn carry_out(records: &Arc<PullRecords>, op: &str) {
    let write_intent = |image: &str| std::mem::forget(records.intend(image).unwrap());
    let write_record = |id: &str| {
        records.learn("app", &ImageId::new(id), &super::tests::node_wide(), SystemTime::UNIX_EPOCH).unwrap();
    };
    // The kubelet's accessor counts nothing; here an intent goes with the last of its pulls.
    let delete_intent = |image: &str| {
        records.state().running.remove(image);
        records.release(image).unwrap();
    };
    let delete_record = |id: &str| {
        let present = record_ids(records).iter().filter(|kept| *kept != id).map(ImageId::new).collect();
        let (removed, _) = records.prune(&present, &records.mark(SystemTime::now()));
        assert_eq!(removed, 1);
    };
    match op.split_once(' ').unwrap() {
        ("write_intent", image) => write_intent(image),
        ("write_record", id) => write_record(id),
        ("delete_intent", image) => delete_intent(image),
        ("delete_record", id) => delete_record(id),
        ("write", "20 intents and 20 records") => {
            for number in 0..20 {
                write_intent(&format!("image:{number}"));
                write_record(&format!("ref{number}"));
            }
        }
        ("delete", "the newest intent") => delete_intent("image:19"),
        ("delete", "the newest record") => delete_record("ref19"),
        other => panic!("{other:?}"),
    }
}
