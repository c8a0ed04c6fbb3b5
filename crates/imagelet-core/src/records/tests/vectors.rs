//! The vectors of records, each case over real files.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use imagelet_vectors::{VectorCase, VectorRun, Way, vectors};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    super::{
        file::{RecordFile, file_name},
        *,
    },
    DEFAULT, image, judged, node_wide, open,
};
use crate::{
    image::{ByteSize, ImageSpec, ImageUser},
    testing::WaySettings as _,
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

fn open_in(way: Way, root: &std::path::Path) -> Arc<PullRecords> {
    let settings = RecordsSettings { guard: way.guard(), ..RecordsSettings::new(DEFAULT) };
    Arc::new(PullRecords::open(root, settings).unwrap())
}

#[test]
fn every_vector_of_who_must_pull_holds_in_both_ways() {
    for way in Way::BOTH {
        // Where the vector bypasses memory, the test reads the disk; the answer has to be the same.
        for holds_all in [true, false] {
            let mut run = VectorRun::of("pull-records-must-attempt.json", way);
            while let Some(case) = run.next_case() {
                let found = must_attempt(&case, way, holds_all || case.input["through_memory_cache"] == true);
                run.compare(&case, &found);
            }
            run.end();
        }
    }
}

fn must_attempt(case: &VectorCase, way: Way, holds_all: bool) -> Value {
    let input = &case.input;
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
        std::fs::write(folder.join("pulling").join(file_name(&intent)), PullIntent::new(&intent).encode()).unwrap();
    }
    if !holds_all {
        for subfolder in ["pulled", "pulling"] {
            std::fs::write(folder.join(subfolder).join(file_name("another")), "{").unwrap();
        }
    }
    let settings = RecordsSettings { guard: way.guard(), ..RecordsSettings::new(policy) };
    let records = PullRecords::open(root.path(), settings).unwrap();
    let asked = text(&input["image"]);
    let found = image(&image_ref, &asked);
    let evidence = records.evidence(&asked, &found);
    let looked_up = std::cell::Cell::new(false);
    let proof = || {
        looked_up.set(true);
        match input["credential_lookup_error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(AccessProof {
                secrets: serde_json::from_value(input["pod_secrets"].clone()).unwrap(),
                service_account: serde_json::from_value(input["pod_service_account"].clone()).unwrap(),
            }),
        }
    };
    let verdict = records.judge(&asked, &evidence, SystemTime::now(), proof);
    let verdict = match verdict {
        Ok(verdict) => verdict.expect("the records are on"),
        Err(error) => {
            // The manager counts and reports this; its vectors cover it.
            return json!({
                "must_pull": true, "metric_result": "error", "error": error, "record_written": false,
                "credentials_looked_up": looked_up.get(),
            });
        }
    };
    let mut found = json!({
        "must_pull": !verdict.allowed, "metric_result": verdict.result.map(CheckResult::name), "error": null,
        "record_written": verdict.learned.is_some(), "credentials_looked_up": looked_up.get(),
    });
    if let Some(learned) = verdict.learned {
        let id = ImageId::new(&image_ref);
        records.learn(&asked, &id, &learned, SystemTime::now()).unwrap();
        found["credential_mapping_after"] = json!(open(root.path()).record(&id).unwrap().mapping);
    }
    found
}

#[test]
fn every_vector_of_the_life_of_records_holds_in_both_ways() {
    for way in Way::BOTH {
        let mut run = VectorRun::of("pull-records-lifecycle.json", way);
        while let Some(case) = run.next_case() {
            let found = match case.input["op"].as_str() {
                Some("record_pull_intent") => intent_written(&case.input, way),
                Some("record_image_pulled") => pull_recorded(&case.input, way),
                Some("startup") => started(&case, way),
                Some("prune") => pruned(&case.input, way),
                Some("migrate") => migrated(&case.input),
                other => panic!("{other:?}"),
            };
            run.compare(&case, &found);
        }
        run.end();
    }
}

fn running(records: &PullRecords, image: &str) -> u64 {
    records.state().running.get(image).copied().unwrap_or_default() as u64
}

fn intent_written(input: &Value, way: Way) -> Value {
    let root = tempfile::tempdir().unwrap();
    let records = open_in(way, root.path());
    let asked = text(&input["image"]);
    let before = input["intent_counter_before"].as_u64().unwrap();
    let _intents: Vec<Intent> = (0..=before).map(|_| records.intend(&asked).unwrap()).collect();
    let files = std::fs::read_dir(root.path().join("image_manager/pulling")).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    let written = PullIntent::decode(&std::fs::read(file).unwrap()).unwrap().0;
    json!({
        "intent_counter_after": running(&records, &asked),
        "intent_file": file.file_name().unwrap().to_str(),
        "intent": {"image": written.image},
    })
}

fn pull_recorded(input: &Value, way: Way) -> Value {
    let root = tempfile::tempdir().unwrap();
    let records = open_in(way, root.path());
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
    let counter = running(&records, &asked);
    let file = root.path().join("image_manager/pulling").join(file_name(&asked));

    // Derived from the files alone.
    let after = open_in(way, root.path());
    let record = after.record(&id).unwrap();
    for other in existing.iter().filter(|other| other.image_ref != record.image_ref) {
        assert_eq!(*after.record(&ImageId::new(&other.image_ref)).unwrap(), *other, "{asked}");
    }
    json!({
        "intent_counter_after": counter,
        "intent_file_removed": !file.exists(),
        "record": {"imageRef": record.image_ref, "credentialMapping": record.mapping},
        "last_updated_time_bumped": record.updated == Some(now),
    })
}

fn started(case: &VectorCase, way: Way) -> Value {
    const AFTERWARDS: &str = "must_pull_afterwards_policy_NeverVerifyPreloadedImages_no_credentials";
    let input = &case.input;
    let root = tempfile::tempdir().unwrap();
    let before = open_in(way, root.path());
    for image in texts(&input["intents"]) {
        before.intents.write(PullIntent::new(image)).unwrap();
    }
    let existing: Vec<PulledRecord> = input["existing_records"].as_array().unwrap().iter().map(record_of).collect();
    for record in &existing {
        before.records.write(record.clone()).unwrap();
    }
    let image = |image: &Value| Image {
        id: ImageId::new(text(&image["id"])),
        tags: texts(&image["repo_tags"]),
        digests: texts(&image["repo_digests"]),
        size: ByteSize(1),
        user: ImageUser::Unset,
        spec: ImageSpec::default(),
        pinned: false,
        artifact: None,
    };
    let images: Vec<Image> = input["runtime_images"].as_array().unwrap().iter().map(image).collect();
    let records = open_in(way, root.path());
    records.resolve_open_intents(&images, SystemTime::now(), Absent::Stays).unwrap();
    let after = open_in(way, root.path());
    let mut left: Vec<String> = after.intents.list().0.iter().map(|begun| begun.image.clone()).collect();
    left.sort();
    let mut have_credentials = false;
    for record in after.records.list().0 {
        match existing.iter().find(|existing| existing.image_ref == record.image_ref) {
            Some(existing) => assert_eq!(*record, *existing, "{}", case.name),
            None => have_credentials |= !record.mapping.is_empty(),
        }
    }
    let mut found = json!({
        "intents_left": left, "record_image_refs": record_ids(&after),
        "new_records_have_credentials": have_credentials,
    });
    if let Some(asked) = case.expected[AFTERWARDS].as_array() {
        let judged = |asked: &Value| {
            let name = text(&asked["image"]);
            let verdict = judged(&records, &name, &images[0], AccessProof::default());
            json!({"image": name, "must_pull": !verdict.allowed})
        };
        found[AFTERWARDS] = asked.iter().map(judged).collect();
    }
    found
}

fn record_ids(records: &PullRecords) -> Vec<String> {
    let ids: BTreeSet<String> = records.records.list().0.iter().map(|it| it.image_ref.clone()).collect();
    ids.into_iter().collect()
}

fn pruned(input: &Value, way: Way) -> Value {
    let root = tempfile::tempdir().unwrap();
    let records = open_in(way, root.path());
    for record in input["existing_records"].as_array().unwrap() {
        records.records.write(record_of(record)).unwrap();
    }
    let present = texts(&input["image_list"]).iter().map(ImageId::new).collect();
    let mark = records.mark(time(&input["until"]).unwrap());
    let (_, failures) = records.prune(&present, &mark);
    assert!(failures.is_empty(), "{failures:?}");
    json!({"record_image_refs": record_ids(&records)})
}

#[test]
fn every_vector_of_collections_on_records_holds_in_both_ways() {
    for way in Way::BOTH {
        let mut run = VectorRun::of("gc-prune-records.json", way);
        while let Some(case) = run.next_case() {
            let found = pruned_by_collection(&case, way);
            run.compare(&case, &found);
        }
        run.end();
    }
}

fn pruned_by_collection(case: &VectorCase, way: Way) -> Value {
    let VectorCase { input, expected, name: place } = case;
    let root = tempfile::tempdir().unwrap();
    let records = open_in(way, root.path());
    let written = input["records"].as_array().unwrap();
    for record in written {
        let image_ref = text(&record["image_ref"]);
        let document = json!({
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
    let kept = record_ids(&records);
    assert_eq!(pruned, written.len() - kept.len(), "{place}");
    // The order in the vector has no meaning.
    let wanted = texts(&expected["records_kept_unordered"]);
    let place = |id: &String| wanted.iter().position(|wanted| wanted == id);
    let mut kept = kept;
    kept.sort_by_key(place);
    json!({"records_kept_unordered": kept})
}

fn migrated(input: &Value) -> Value {
    let root = tempfile::tempdir().unwrap();
    drop(open(root.path()));
    let folder = |name: &str| root.path().join("image_manager").join(name);
    let put = |folder_name: &str, key: &str, content: Vec<u8>, version: &str| {
        let content = String::from_utf8(content).unwrap();
        let path = folder(folder_name).join(file_name(key));
        std::fs::write(&path, content.replace("v1beta1", version)).unwrap();
        (path, content.replace("v1beta1", "VERSION"))
    };
    let intent = |(index, version): (usize, &String)| {
        let key = format!("reg.io/a{index}:v1");
        put("pulling", &key, PullIntent::new(key.as_str()).encode(), version)
    };
    let record = |(index, version): (usize, &String)| {
        let id = format!("sha256:{index}");
        let record = json!({
            "imageRef": id, "lastUpdatedTime": "2024-10-21T12:26:40Z",
            "credentialMapping": {"reg.io/a": {"nodePodsAccessible": true}},
        });
        put("pulled", &id, record_of(&record).encode(), version)
    };
    let intents: Vec<_> = texts(&input["intent_versions"]).iter().enumerate().map(intent).collect();
    let records: Vec<_> = texts(&input["record_versions"]).iter().enumerate().map(record).collect();
    drop(open(root.path()));
    let mut is_unchanged = true;
    let mut versions = |files: &[(std::path::PathBuf, String)]| -> Vec<String> {
        let version = |(path, content): &(std::path::PathBuf, String)| {
            let after = std::fs::read_to_string(path).unwrap();
            let version = if after.contains("v1beta1") { "v1beta1" } else { "v1alpha1" };
            is_unchanged &= after.replace(version, "VERSION") == *content;
            version.to_owned()
        };
        files.iter().map(version).collect()
    };
    let (intents, records) = (versions(&intents), versions(&records));
    json!({"intent_versions": intents, "record_versions": records, "content_otherwise_unchanged": is_unchanged})
}

#[test]
fn every_gauge_vector_holds() {
    let cases = vectors("pull-records-gauges.json");
    let mut steps = 0;
    for case in &cases {
        let (input, expected) = (&case["input"], &case["expected"]);
        let root = tempfile::tempdir().unwrap();
        let records = open(root.path());
        let metrics = Arc::new(Metrics::new());
        records.export_to(Arc::clone(&metrics));
        for (op, after) in texts(&input["ops"]).iter().zip(expected["after_each"].as_array().unwrap()) {
            carry_out(&records, op);
            let shown = metrics.render();
            // All records are in memory, so no gauge says how many.
            for (name, value) in after.as_object().unwrap().iter().filter(|(name, _)| !name.contains("_inmemory_")) {
                assert!(shown.contains(&format!("\n{name} {value}\n")), "{op}: {name} {value} in {shown}");
            }
            steps += 1;
        }
    }
    assert_eq!((cases.len(), steps), (2, 15));
}

/// Runs an operation of a gauge vector through the calls of the manager and the collector.
fn carry_out(records: &Arc<PullRecords>, op: &str) {
    let write_intent = |image: &str| std::mem::forget(records.intend(image).unwrap());
    let write_record = |id: &str| {
        records.learn("app", &ImageId::new(id), &node_wide(), SystemTime::UNIX_EPOCH).unwrap();
    };
    // The kubelet's accessor counts nothing; here the last pull removes the intent.
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
