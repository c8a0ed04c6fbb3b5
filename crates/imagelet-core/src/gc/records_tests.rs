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

/// A node with a vector's images and their records, as a program opens them that was restarted since.
struct Scene {
    node: Node,
    records: PullRecords,
    _root: tempfile::TempDir,
    ids: Vec<(String, ImageId)>,
    goal: GcGoal,
}

async fn scene(case: &Value, guard: Guard) -> Scene {
    let (input, expected) = (&case["input"], &case["expected"]);
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
        ids.push((name.to_owned(), id));
    }
    let before = must_pull(&node, &records, "in-use").await;
    assert_eq!(Some(before), expected["pod_without_credentials_must_pull_in_use_image_before"].as_bool());

    let records = PullRecords::open(
        root.path(),
        RecordsSettings { guard, ..VerificationPolicy::NeverVerifyPreloadedImages.into() },
    )
    .unwrap();
    let goal = if input["op"] == "delete_unused" { GcGoal::AllUnused } else { GcGoal::Threshold };
    Scene { node, records, _root: root, ids, goal }
}

fn texts(value: &Value) -> BTreeSet<String> {
    value.as_array().into_iter().flatten().map(|it| it.as_str().unwrap().to_owned()).collect()
}

/// The kubelet's way, down to the flaw: what its hook is handed, and what is left on record if one goes by that.
#[tokio::test]
async fn every_vector_of_collections_and_records_holds_in_the_kubelets_way() {
    let cases = vectors("pull-records-gc-interplay.json");
    assert_eq!(cases.len(), 3);
    for case in &cases {
        let (expected, place) = (&case["expected"], &case["name"]);
        let Scene { node, records, _root, ids, goal } = scene(case, Guard::Spelling).await;
        let mark = records.mark(at(10_000));
        let report = node.collect_as_kubelet(goal).await;
        assert_eq!(expected["hook_called"], report.hook.is_some(), "{place}");
        if let Some(hook) = &report.hook {
            let name = |id: &ImageId| ids.iter().find(|(_, it)| it == id).unwrap().0.clone();
            assert_eq!(hook.iter().map(name).collect::<BTreeSet<_>>(), texts(&expected["hook_list"]), "{place}");
            let (_, failures) = records.prune(&hook.iter().cloned().collect(), &mark);
            assert!(failures.is_empty());
        } else {
            assert!(expected["hook_list"].is_null(), "{place}");
        }
        let left = node.fake.list(None).await.unwrap();
        assert_eq!(expected["images_left_unordered_count"], left.len(), "{place}");
        assert_eq!(expected["removed_count"], report.removed.len(), "{place}");
        let kept: BTreeSet<String> =
            ids.iter().filter(|(_, id)| records.record(id).is_some()).map(|(name, _)| name.clone()).collect();
        assert_eq!(kept, texts(&expected["records_left"]), "{place}");
        let after = must_pull(&node, &records, "in-use").await;
        assert_eq!(expected["pod_without_credentials_must_pull_in_use_image_after"], after, "{place}");
        // What the program goes by instead.
        assert_eq!(report.present.as_ref().map(Vec::len), Some(left.len()), "{place}");
    }
}

async fn interplay_holds(case: &Value, guard: Guard) {
    let (expected, place) = (&case["expected"], &case["name"]);
    let number = |value: &Value| value.as_u64().expect("a number");
    let Scene { node, records, _root, ids, goal } = scene(case, guard).await;

    // As the program collects: a mark, the collection, what is present.
    let mark = records.mark(at(10_000));
    let report = node.collect(goal).await;
    let present: BTreeSet<ImageId> = report.present.expect("the list worked").into_iter().collect();
    let (pruned, failures) = records.prune(&present, &mark);
    assert!(failures.is_empty());

    let listed: BTreeSet<ImageId> =
        node.fake.list(None).await.unwrap().into_iter().map(|image| image.id.clone()).collect();
    assert_eq!(listed.len() as u64, number(&expected["images_left_unordered_count"]), "{place}");
    assert_eq!(report.removed.len() as u64, number(&expected["removed_count"]), "{place}");
    assert_eq!(present, listed, "{place}: everything present is handed on, in use and pinned ones too");
    assert_eq!(pruned as u64, number(&expected["removed_count"]), "{place}");
    let kept: Vec<&str> =
        ids.iter().filter(|(_, id)| records.record(id).is_some()).map(|(name, _)| name.as_str()).collect();
    let left: Vec<&str> = ids.iter().filter(|(_, id)| listed.contains(id)).map(|(name, _)| name.as_str()).collect();
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
