//! What a collection does to the pull records of the images that stay: nothing.

use std::{collections::BTreeSet, convert::Infallible};

use serde_json::Value;

use super::{
    tests::{Node, at},
    *,
};
use crate::{
    records::{Asker, Guard, ImageAccess, PullRecords, RecordedSecret, RecordsSettings, VerificationPolicy},
    runtime::{ContainerState, ImageService},
    testing::vectors,
};

/// Whether a pod without credentials has to pull an image that is here.
async fn must_pull(node: &Node, records: &PullRecords, name: &str) -> bool {
    let images = node.fake.list(None).await.unwrap();
    let found = images.iter().find(|image| image.tags.contains(&full(name))).unwrap();
    let evidence = records.look_up(name, found);
    let nobody = || Ok::<_, Infallible>(Asker::default());
    !records.judge(name, &evidence, at(10_000), nobody).unwrap().unwrap().allowed
}

fn full(name: &str) -> String {
    format!("docker.io/library/{name}:latest")
}

/// The file tells what the kubelet does: it hands on the images it looked at and kept, and so loses the records of all
/// others that stay. What is removed from the node is the same here. What is handed on is everything that is present,
/// so that each image which stays keeps its record, and the door stays shut.
#[tokio::test]
async fn every_vector_of_collections_and_records_holds_but_for_the_flaw_it_documents() {
    let cases = vectors("pull-records-gc-interplay.json");
    for guard in [Guard::Spelling, Guard::Image] {
        for case in &cases {
            interplay_holds(case, guard).await;
        }
    }
    assert_eq!(cases.len(), 3);
}

async fn interplay_holds(case: &Value, guard: Guard) {
    let (input, expected, place) = (&case["input"], &case["expected"], &case["name"]);
    let number = |value: &Value| value.as_u64().expect("a number");
    assert_eq!(
        (&input["high_threshold_percent"], &input["low_threshold_percent"]),
        (&90.into(), &80.into()),
        "as the node of these tests"
    );
    let images = input["images"].as_array().unwrap();
    let taken: u64 = images.iter().map(|image| number(&image["size"])).sum();
    let node = Node::new(number(&input["capacity"]) - number(&input["available"]) - taken);
    assert_eq!(input["policy"], "NeverVerifyPreloadedImages");
    let settings = RecordsSettings { guard, ..VerificationPolicy::NeverVerifyPreloadedImages.into() };
    let root = tempfile::tempdir().unwrap();
    let records = PullRecords::open(root.path(), settings).unwrap();
    let mut ids = Vec::new();
    for image in images {
        let name = image["id"].as_str().unwrap();
        let id = node.idle(name, number(&image["size"]), 0).await;
        if image["in_use"] == true {
            node.fake.run("pod", "main", name, &id, ContainerState::Running);
        }
        node.fake.set_pinned(&id, image["pinned"] == true);
        let secret = RecordedSecret { uid: name.into(), credential_hash: name.into(), ..RecordedSecret::default() };
        let access = ImageAccess { kubernetes_secrets: vec![secret], ..ImageAccess::default() };
        records.learn(name, &id, &access, at(10_000 - 3600)).unwrap();
        ids.push((name, id));
    }
    let before = must_pull(&node, &records, "in-use").await;
    assert_eq!(Some(before), expected["pod_without_credentials_must_pull_in_use_image_before"].as_bool());

    // As the program collects: a mark, the collection, what is present.
    let records = PullRecords::open(
        root.path(),
        RecordsSettings { guard, ..VerificationPolicy::NeverVerifyPreloadedImages.into() },
    )
    .unwrap();
    let mark = records.mark(at(10_000));
    let goal = if input["op"] == "delete_unused" { GcGoal::AllUnused } else { GcGoal::Threshold };
    let report = node.collect(goal).await;
    let present: BTreeSet<ImageId> = report.present.expect("the list worked").into_iter().collect();
    let (pruned, failures) = records.prune(&present, &mark);
    assert!(failures.is_empty());

    let listed: BTreeSet<ImageId> = node.fake.list(None).await.unwrap().into_iter().map(|image| image.id).collect();
    assert_eq!(listed.len() as u64, number(&expected["images_left_unordered_count"]), "{place}");
    assert_eq!(report.removed.len() as u64, number(&expected["removed_count"]), "{place}");
    assert_eq!(present, listed, "{place}: everything present is handed on, in use and pinned ones too");
    assert_eq!(pruned as u64, number(&expected["removed_count"]), "{place}");
    let kept: Vec<&str> = ids.iter().filter(|(_, id)| records.record(id).is_some()).map(|(name, _)| *name).collect();
    let left: Vec<&str> = ids.iter().filter(|(_, id)| listed.contains(id)).map(|(name, _)| *name).collect();
    assert_eq!(kept, left, "{place}: whatever stays keeps its record");
    if expected["hook_called"] == false {
        let wanted: BTreeSet<&str> =
            expected["records_left"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(kept.into_iter().collect::<BTreeSet<_>>(), wanted, "{place}");
    }
    // Where the kubelet lets the pod in afterwards, that is the flaw.
    assert!(must_pull(&node, &records, "in-use").await, "{place}");
    assert!(must_pull(&node, &records, "pinned").await, "{place}");
}
