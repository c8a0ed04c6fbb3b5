//! Tables: what pods say about images.

use imagelet_core::{manager::PodStarts, metrics::Metrics};
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::*;

fn pod(spec: &Value, status: &Value) -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "managedFields": [{"manager": "kubectl"}]},
        "spec": spec,
        "status": status,
    })
}

fn read(object: &Value) -> Option<BoundPod> {
    bound_pod(&serde_json::from_value(object.clone()).unwrap())
}

fn bound(spec: &Value, status: &Value) -> BoundPod {
    read(&pod(spec, status)).expect("it is not finished")
}

fn waiting(spec: &Value, status: &Value) -> Vec<String> {
    let images = bound(spec, status).waiting().map(|it| it.images).unwrap_or_default();
    images.iter().map(ToString::to_string).collect()
}

#[test]
fn every_image_of_a_pod_is_read_in_the_order_of_a_kubelet_with_its_policy() {
    let spec = json!({
        "containers": [{"name": "app", "image": "app:v1"}, {"name": "latest", "image": "app"}],
        "initContainers": [
            {"name": "setup", "image": "setup:v1", "imagePullPolicy": "Never"},
            {"name": "proxy", "image": "proxy:v1", "restartPolicy": "Always", "imagePullPolicy": "Always"},
        ],
        "ephemeralContainers": [{"name": "debug", "image": "debug:v1", "imagePullPolicy": "Sometimes"}],
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "model", "image": {"reference": "model:v1", "pullPolicy": "IfNotPresent"}},
        ],
        "imagePullSecrets": [{"name": "registry"}, {"name": ""}, {"name": "../other"}],
        "serviceAccountName": "builder",
    });
    let pod = bound(&spec, &json!({}));
    let found: Vec<_> = pod.images.iter().map(|it| (it.role, &*it.name, &*it.image, it.policy.name())).collect();
    assert_eq!(
        found,
        [
            (PodRole::Volume, "model", "model:v1", "IfNotPresent"),
            (PodRole::Ephemeral, "debug", "debug:v1", "Sometimes"),
            (PodRole::Init, "setup", "setup:v1", "Never"),
            (PodRole::Init, "proxy", "proxy:v1", "Always"),
            (PodRole::Container, "app", "app:v1", "IfNotPresent"),
            (PodRole::Container, "latest", "app", "Always"),
        ]
    );
    assert_eq!(&*pod.service_account, "builder");
    assert_eq!(pod.pull_secrets.iter().map(|it| &**it).collect::<Vec<_>>(), ["registry"]);
    assert_eq!((pod.full_name().as_str(), &*pod.identity.uid), ("shop/web", "u1"));
}

#[test]
fn what_a_pod_leaves_out_has_the_api_servers_defaults() {
    let digest = format!("app@sha256:{}", "a".repeat(64));
    for (image, policy) in
        [("app", "Always"), ("app:latest", "Always"), ("app:v1", "IfNotPresent"), (&digest, "IfNotPresent")]
    {
        let pod = bound(&json!({"containers": [{"name": "app", "image": image}]}), &json!(null));
        assert_eq!(pod.images[0].policy.name(), policy, "{image}");
        assert_eq!(&*pod.service_account, "");
    }
    let old = json!({"serviceAccount": "old", "containers": null, "volumes": null});
    let pod = bound(&old, &json!({"containerStatuses": null}));
    assert_eq!((&*pod.service_account, pod.images.len()), ("old", 0));
    assert_eq!(pod.waiting(), None);
}

#[test]
fn a_container_waits_until_it_runs_and_again_when_it_is_created_again() {
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let pull_fails = json!({"waiting": {"reason": "ImagePullBackOff"}});
    let crashes = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let done = json!({"terminated": {"exitCode": 0}});
    let failed = json!({"terminated": {"exitCode": 1}});
    for (state, restart, waits) in [
        (json!(null), "Always", true),
        (json!({}), "Always", true),
        (running.clone(), "Always", false),
        (pull_fails, "Never", true),
        (crashes, "Always", true),
        (done.clone(), "Always", true),
        (done.clone(), "", true),
        (failed.clone(), "OnFailure", true),
        (done.clone(), "OnFailure", false),
        (failed.clone(), "Never", false),
        (done.clone(), "Never", false),
    ] {
        let spec = json!({"restartPolicy": restart, "containers": [{"name": "app", "image": "app:v1"}]});
        let status = json!({"containerStatuses": [{"name": "app", "state": state}]});
        assert_eq!(waiting(&spec, &status).len(), usize::from(waits), "{state} {restart}");
    }
    for (own, state, waits) in [
        (json!({}), &done, false),
        (json!({}), &failed, true),
        (json!({}), &running, false),
        (json!({"restartPolicy": "Always"}), &done, true),
        (json!({"restartPolicy": "Always"}), &running, false),
        (json!({"restartPolicy": "Never"}), &failed, false),
        (json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}), &failed, true),
    ] {
        let mut init = json!({"name": "setup", "image": "setup:v1"});
        init.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let status = json!({"initContainerStatuses": [{"name": "setup", "state": state}]});
        assert_eq!(waiting(&json!({"initContainers": [init]}), &status).len(), usize::from(waits), "{own} {state}");
    }
    let debug = json!({"ephemeralContainers": [{"name": "debug", "image": "debug:v1"}]});
    assert_eq!(waiting(&debug, &json!({})), ["debug:v1"]);
    let ended = json!({"ephemeralContainerStatuses": [{"name": "debug", "state": failed}]});
    assert_eq!(waiting(&debug, &ended), [""; 0]);
}

#[test]
fn the_image_of_a_volume_is_awaited_as_long_as_a_container_of_the_pod_is() {
    let spec = json!({
        "containers": [{"name": "app", "image": "app:v1"}, {"name": "log", "image": "log:v1"}],
        "volumes": [{"name": "model", "image": {"reference": "model:v1"}}],
    });
    let running = json!({"name": "app", "state": {"running": {}}});
    assert_eq!(waiting(&spec, &json!({"containerStatuses": [running]})), ["log:v1", "model:v1"]);
    let both = json!({"containerStatuses": [running, {"name": "log", "state": {"running": {}}}]});
    assert_eq!(waiting(&spec, &both), [""; 0]);
}

#[test]
fn a_pod_that_is_finished_or_being_deleted_starts_no_more_containers() {
    let spec = json!({"containers": [{"name": "app", "image": "app:v1"}]});
    for phase in ["Succeeded", "Failed"] {
        assert_eq!(read(&pod(&spec, &json!({"phase": phase}))), None);
    }
    for phase in ["Pending", "Running", "Unknown", ""] {
        assert!(read(&pod(&spec, &json!({"phase": phase}))).is_some());
    }
    let mut deleted = pod(&spec, &json!({"phase": "Running"}));
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert_eq!(read(&deleted), None);
}

#[test]
fn an_image_without_a_valid_name_is_passed_over_and_the_others_are_read() {
    let long = format!("app:{}", "v".repeat(2000));
    for image in ["", "UPPER", "a b\u{1b}[31m", "https://user:secret@registry/app", &long] {
        let spec = json!({"containers": [{"name": "bad", "image": image}, {"name": "app", "image": "app:v1"}]});
        let pod = bound(&spec, &json!({}));
        assert_eq!(pod.images.iter().map(|it| &*it.image).collect::<Vec<_>>(), ["app:v1"], "{image}");
    }
    let many: Vec<Value> = (0..300).map(|at| json!({"name": format!("c{at}"), "image": format!("app:{at}")})).collect();
    let pod = bound(&json!({"containers": many}), &json!({}));
    assert_eq!((pod.images.len(), pod.left_out), (256, 44));
}

#[test]
fn a_pod_whose_name_is_none_is_rejected_as_a_whole() {
    let long = "a".repeat(254);
    for (namespace, name) in
        [("", "web"), ("shop", ""), ("shop", "web/../x"), ("Shop", "web"), ("shop", "w\u{1b}[2J"), ("shop", &long)]
    {
        let object = json!({"metadata": {"namespace": namespace, "name": name}, "spec": {}});
        assert_eq!(read(&object), None, "{object}");
    }
}

#[test]
fn a_pod_ends_by_its_object_by_its_deletion_and_by_a_list_without_it_but_not_by_a_list_that_is_incomplete() {
    let metrics = Arc::new(Metrics::new());
    let mut pods = KnownPods::new(StartTracker::new(Arc::clone(&metrics), Arc::new(PodStarts::new(metrics))));
    let object = |name: &str| -> PodObject {
        let metadata = json!({"name": name, "namespace": "shop", "uid": name});
        serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap()
    };
    let deleted = |name| {
        let mut object = object(name);
        object.metadata.deletion_timestamp = serde_json::from_value("2026-01-01T00:00:00Z".into()).unwrap();
        object
    };
    let finished = |name| {
        let mut object = object(name);
        object.status.phase = "Failed".to_owned();
        object
    };
    let list = |objects: Vec<PodObject>| {
        let listed = objects.into_iter().map(Event::InitApply);
        [Event::Init].into_iter().chain(listed).chain([Event::InitDone]).collect::<Vec<_>>()
    };
    let [gone, done, removed] = [PodEnd::Deleted, PodEnd::Finished, PodEnd::Removed];
    let names: Vec<String> = (0..=PODS_MAX).map(|number| format!("p{number:04}")).collect();
    let many = names.iter().map(|name| object(name));
    let all_but_first = names[1..PODS_MAX].iter().map(|name| (name.as_str(), removed)).collect();
    let broken_off = [Event::Init, Event::InitApply(deleted("x"))];
    let twice = broken_off.into_iter().chain(list(vec![object("e"), deleted("x")])).collect();
    for (what, events, ended, alive) in [
        ("the first list", list(vec![object("a"), object("b"), object("c")]), vec![], 3),
        ("a list that breaks off", vec![Event::Init, Event::InitApply(object("a")), Event::Init], vec![], 3),
        ("a list", list(vec![object("a"), deleted("c")]), vec![("c", gone), ("b", removed), ("c", removed)], 1),
        ("a pod again", vec![Event::Apply(object("b"))], vec![], 2),
        ("a grace", vec![Event::Apply(deleted("a"))], vec![("a", gone)], 1),
        ("a finished pod", vec![Event::Apply(finished("b"))], vec![("b", done)], 0),
        ("a deletion", vec![Event::Apply(object("d")), Event::Delete(object("d"))], vec![("d", removed)], 0),
        ("the next pod", vec![Event::Apply(object("e"))], vec![], 1),
        ("a list after one that broke off", twice, vec![("x", gone)], 1),
        ("a list beyond the limit", list(many.collect()), vec![], PODS_MAX),
        ("a list within the limit", list(vec![object("p0000")]), all_but_first, 1),
    ] {
        for event in events {
            pods.take(event);
        }
        let changes = pods.take_changes();
        let found: Vec<_> = changes.ended.iter().map(|(uid, end)| (&**uid, *end)).collect();
        assert_eq!((found, changes.alive.len()), (ended, alive), "{what}");
    }
}

#[test]
fn the_labels_of_a_pod_are_known_up_to_a_limit_and_a_change_of_them_is_one_of_the_pod() {
    let labelled = |labels: &Value| -> PodObject {
        let mut pod = pod(&json!({"containers": [{"name": "app", "image": "app:v1"}]}), &json!({}));
        pod["metadata"]["labels"] = labels.clone();
        serde_json::from_value(pod).unwrap()
    };
    let long = json!({"app": "web", "long": "x".repeat(8 << 10)});
    for (labels, expected) in
        [(json!(null), Some(json!({}))), (json!({"app": "web"}), Some(json!({"app": "web"}))), (long.clone(), None)]
    {
        let found = bound_pod(&labelled(&labels)).unwrap().labels;
        assert_eq!(found.map(|it| json!(it)), expected);
    }
    let metrics: Arc<Metrics> = Arc::default();
    let mut pods = KnownPods::new(StartTracker::new(Arc::clone(&metrics), Arc::new(PodStarts::new(metrics))));
    for (labels, is_changed) in [
        (json!({"app": "web"}), true),
        (json!({"app": "web"}), false),
        (json!({"app": "api"}), true),
        (long.clone(), true),
        (long, false),
    ] {
        assert_eq!(pods.take(Event::Apply(labelled(&labels))), is_changed, "{labels}");
    }
}
