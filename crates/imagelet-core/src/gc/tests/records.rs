//! What a collection does to the pull records of the images that stay: nothing.

use std::{collections::BTreeSet, convert::Infallible};

use imagelet_vectors::{VectorCase, VectorRun, Way};
use serde_json::{Value, json};

use super::*;
use crate::{
    ports::{ContainerState, ImageService},
    records::{AccessProof, Guard, ImageAccess, PullRecords, RecordedSecret, RecordsSettings, VerificationPolicy},
    testing::WaySettings as _,
};

/// Whether a pod without credentials must pull a present image.
async fn must_pull(node: &Node, records: &PullRecords, name: &str) -> bool {
    let images = node.fake.list(None).await.unwrap();
    let found = images.iter().find(|image| image.tags.contains(&full(name))).unwrap();
    let evidence = records.evidence(name, found);
    let no_proof = || Ok::<_, Infallible>(AccessProof::default());
    !records.judge(name, &evidence, at(10_000), no_proof).unwrap().unwrap().allowed
}

fn full(name: &str) -> String {
    format!("docker.io/library/{name}:latest")
}

#[tokio::test]
async fn every_vector_of_collections_and_records_holds_in_both_ways() {
    for way in Way::BOTH {
        let mut run = VectorRun::of("pull-records-gc-interplay.json", way);
        while let Some(case) = run.next_case() {
            let found = collected(&case, way).await;
            run.compare(&case, &found);
        }
        run.end();
    }
}

/// A node with a vector's images and records after a restart.
struct Scene {
    node: Node,
    records: PullRecords,
    _root: tempfile::TempDir,
    ids: Vec<(String, ImageId)>,
    goal: GcGoal,
}

async fn scene(case: &VectorCase, guard: Guard) -> Scene {
    let VectorCase { input, expected, .. } = case;
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

/// A collection as in the program: a mark, the collection, and the pruning of absent images' records.
async fn collected(case: &VectorCase, way: Way) -> Value {
    let Scene { node, records, _root, ids, goal } = scene(case, way.guard()).await;
    let before = must_pull(&node, &records, "in-use").await;
    let mark = records.mark(at(10_000));
    let report = node.collect_in(way, goal).await;
    let present: BTreeSet<ImageId> = report.present.iter().flatten().cloned().collect();
    let (_, failures) = records.prune(&present, &mark);
    assert!(failures.is_empty(), "{failures:?}");
    let name = |id: &ImageId| ids.iter().find(|(_, it)| it == id).map(|(name, _)| name.clone());
    let mut kept: Vec<&String> =
        ids.iter().filter(|(_, id)| records.record(id).is_some()).map(|(name, _)| name).collect();
    kept.sort();
    json!({
        "images_left_unordered_count": node.fake.list(None).await.unwrap().len(),
        "removed_count": report.removed().count(),
        // The kubelet's hook is for library users.
        "hook_called": report.hook.is_some(),
        "hook_list": report.hook.as_ref().map(|hook| hook.iter().map(name).collect::<Vec<_>>()),
        "records_left": kept,
        "pod_without_credentials_must_pull_in_use_image_before": before,
        "pod_without_credentials_must_pull_in_use_image_after": must_pull(&node, &records, "in-use").await,
    })
}

#[tokio::test]
async fn a_collection_remembers_the_preloaded_images_and_a_dry_run_and_a_list_from_before_a_pull_do_not() {
    let Node { fake, inventory, gc, trapped } = Node::new(0);
    let records = Arc::new(PullRecords::in_memory());
    let node = Node { fake, inventory, gc: gc.with_records(Arc::clone(&records), true), trapped };
    let id = node.idle("app", 1, 0).await;
    let policy = GcPolicy::new(90, 80, Duration::from_mins(2), None).unwrap();
    let collect = async |dry_run| {
        let request = GcRequest { policy, goal: GcGoal::Threshold, dry_run };
        node.gc.run(&request, at(10_000)).await.unwrap();
    };
    let learn = |name: &str| {
        let secret = RecordedSecret { uid: "u".into(), credential_hash: "h".into(), ..RecordedSecret::default() };
        let access = ImageAccess { kubernetes_secrets: vec![secret], ..ImageAccess::default() };
        records.learn(name, &id, &access, at(10_000)).unwrap();
    };
    let forget = || records.prune(&BTreeSet::new(), &records.mark(at(20_000)));
    for (collects, must) in [(None, true), (Some(true), true), (Some(false), false)] {
        if let Some(dry_run) = collects {
            collect(dry_run).await;
        }
        learn("reg.io/team/app:v1");
        assert_eq!(must_pull(&node, &records, "app").await, must, "{collects:?}");
        forget();
    }
}
