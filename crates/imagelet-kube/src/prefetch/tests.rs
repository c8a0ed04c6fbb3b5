//! The rights below deploy/, by hand and in the chart: they permit each request of agents and controller, and nothing besides.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    PrefetchAgent, PrefetchController,
    testing::{FakeNode, GROUP, NODES, REPORTS, SETS},
};
use crate::testing::{FakeApi, FakeApiOptions};

/// Group, resource and verb.
type Right = (String, String, String);

/// For an installation by hand, with service accounts.
const BY_HAND: &str = "prefetch-rbac.yaml";
/// As the Helm chart is rendered: the agents have the credentials of their nodes.
const OF_CHART: &str = "imagelet.yaml";

/// The roles of agents and controller: by hand and in the chart.
const AGENT: [(&str, &str); 2] = [(BY_HAND, "imagelet-manual-agent"), (OF_CHART, "imagelet-prefetch-agent")];
const CONTROLLER: [(&str, [&str; 2]); 2] = [
    (BY_HAND, ["imagelet-manual-controller", "imagelet-manual-controller"]),
    (OF_CHART, ["imagelet-prefetch-controller", "imagelet-controller"]),
];

fn documents(file: &str) -> Vec<Value> {
    let path = format!("{}/../../deploy/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    serde_saphyr::from_multiple(&text).expect("it is YAML")
}

/// What the roles of this name, of the cluster and of a namespace, grant by this file.
fn granted(file: &str, role: &str) -> BTreeSet<Right> {
    let documents = documents(file);
    let is_role = |it: &&Value| it["metadata"]["name"] == role && it["rules"].is_array();
    let rules: Vec<&Value> =
        documents.iter().filter(is_role).flat_map(|role| role["rules"].as_array().unwrap()).collect();
    assert!(!rules.is_empty(), "no role `{role}` in {file}");
    let list = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut rights = BTreeSet::new();
    for rule in rules {
        for group in list(&rule["apiGroups"]) {
            for resource in list(&rule["resources"]) {
                rights.extend(list(&rule["verbs"]).into_iter().map(|verb| (group.clone(), resource.clone(), verb)));
            }
        }
    }
    rights
}

/// The rights that a request takes, as the API server sees it.
fn needed(request: &str) -> Vec<Right> {
    let (method, place) = request.split_once(' ').unwrap();
    let (path, query) = place.split_once('?').unwrap_or((place, ""));
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, rest) = match &parts[..] {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => panic!("{request}"),
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] => rest,
        rest => rest,
    };
    let (resource, has_name) = match rest {
        [resource] => ((*resource).to_owned(), false),
        [resource, _] => ((*resource).to_owned(), true),
        [resource, _, part] => (format!("{resource}/{part}"), true),
        _ => panic!("{request}"),
    };
    let is_status = resource.contains('/');
    let verbs: &[&str] = match (method, has_name) {
        ("GET", true) => &["get"],
        ("GET", false) if query.contains("watch=true") => &["watch"],
        ("GET", false) => &["list"],
        ("POST", _) => &["create"],
        ("PUT", _) => &["update"],
        // An apply creates what is absent; the status of an absent object it does not.
        ("PATCH", _) if is_status => &["patch"],
        ("PATCH", _) => &["patch", "create"],
        ("DELETE", _) => &["delete"],
        _ => panic!("{request}"),
    };
    verbs.iter().map(|verb| (group.to_owned(), resource.clone(), (*verb).to_owned())).collect()
}

fn rights_of(requests: &[String]) -> BTreeSet<Right> {
    requests.iter().flat_map(|request| needed(request)).collect()
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn the_roles_grant_each_request_of_agents_and_controller_and_nothing_besides() {
    let fake = FakeApi::start(FakeApiOptions::default()).await;
    fake.install(GROUP);
    fake.put(NODES, json!({"metadata": {"name": "node-1"}}));
    let spec =
        json!({"images": [{"reference": "a:1", "pullSecret": "login"}], "ttlAfterFinished": "1ms", "deadline": "1ms"});
    fake.put(SETS, json!({"metadata": {"namespace": "shop", "name": "short"}, "spec": spec}));
    let spec = json!({"images": [{"reference": "a:1", "pullSecret": "login"}]});
    fake.put(SETS, json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec}));
    let client = || fake.client();
    let agent = PrefetchAgent::new(client(), "node-1", Arc::new(FakeNode::default()));
    let agent = tokio::spawn(async move { agent.run().await });
    seconds(30).await;
    agent.abort();
    let of_agent = rights_of(&fake.requests());
    let [by_hand, of_chart] = AGENT.map(|(file, role)| granted(file, role));
    assert_eq!(of_agent, by_hand);
    // Kubernetes itself lets a node read its own Node; secrets are granted by their names.
    let of_sets = of_agent.into_iter().filter(|(group, _, _)| group == "imagelet.dev").collect();
    assert_eq!(of_chart, of_sets);

    let before = fake.requests().len();
    fake.put(REPORTS, json!({"metadata": {"name": "node-gone"}}));
    let of_cluster = "/apis/imagelet.dev/v1alpha1/clusterimagesets";
    let spec = json!({"images": [{"reference": "a:1"}], "ttlAfterFinished": "1ms", "deadline": "1ms"});
    fake.put(of_cluster, json!({"metadata": {"name": "base"}, "spec": spec}));
    let controller = PrefetchController::new(client(), "kube-system", "test", Arc::default());
    let controller = tokio::spawn(async move { controller.run().await });
    seconds(200).await;
    controller.abort();
    let of_controller = rights_of(&fake.requests()[before..]);
    for (file, roles) in CONTROLLER {
        let all = roles.into_iter().flat_map(|role| granted(file, role)).collect();
        assert_eq!(of_controller, all, "{file}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_controller_requests_the_metadata_of_nodes_alone() {
    let fake = FakeApi::start(FakeApiOptions::default()).await;
    fake.install(GROUP);
    fake.put(NODES, json!({"metadata": {"name": "node-1"}}));
    let accepted = Arc::new(Mutex::new(Vec::new()));
    let client = || {
        let (client, accepted) = (fake.client(), Arc::clone(&accepted));
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            if request.uri().path() == NODES {
                accepted.lock().unwrap().push(request.headers()[http::header::ACCEPT].clone());
            }
            let client = client.clone();
            async move { client.send(request).await }
        });
        kube::Client::new(service, "default")
    };
    let controller = PrefetchController::new(client(), "kube-system", "test", Arc::default());
    tokio::select! {
        () = controller.run() => {}
        () = seconds(30) => {}
    }
    let accepted = accepted.lock().unwrap();
    let is_metadata = |accept: &http::HeaderValue| accept.to_str().unwrap().contains("as=PartialObjectMetadata");
    // A list and a watch.
    assert!(accepted.len() >= 2 && accepted.iter().all(is_metadata), "{accepted:?}");
}

#[test]
fn the_file_for_service_accounts_changes_nothing_of_the_chart_and_the_chart_nothing_of_it() {
    // Either may be applied over the other, in any namespace of the chart. A service account alone grants nothing.
    let names = |file: &str| -> BTreeSet<String> {
        let documents = documents(file);
        let named = documents.iter().filter(|it| it["kind"] != "ServiceAccount" && !it.is_null());
        named.map(|it| format!("{} {}", text(&it["kind"]), text(&it["metadata"]["name"]))).collect()
    };
    let (by_hand, of_chart) = (names(BY_HAND), names(OF_CHART));
    let both: Vec<&String> = by_hand.intersection(&of_chart).collect();
    assert_eq!(both, [""; 0], "applying one file replaces the rules and subjects of the other");
    assert!(by_hand.len() >= 6 && of_chart.len() >= 6, "{by_hand:?} {of_chart:?}");
    // Each binding leads to a role of its own file, and each role of the file is bound.
    for file in [BY_HAND, OF_CHART] {
        let documents = documents(file);
        let roles = documents.iter().filter(|it| it["rules"].is_array());
        let roles: BTreeSet<(&str, &str)> =
            roles.map(|it| (text(&it["kind"]), text(&it["metadata"]["name"]))).collect();
        let bound = documents.iter().filter(|it| it["roleRef"].is_object());
        let bound: BTreeSet<(&str, &str)> =
            bound.map(|it| (text(&it["roleRef"]["kind"]), text(&it["roleRef"]["name"]))).collect();
        assert_eq!(bound, roles, "{file}");
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn the_page_has_the_rights_of_the_file_and_that_of_gated_sets() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/prefetch.md")).unwrap();
    let (_, table) = page.split_once("| resource | agent | controller |\n").unwrap();
    // `RESOURCE`, … | VERB, … | VERB, …
    let mut of_page = [BTreeSet::new(), BTreeSet::new()];
    for row in table.lines().skip(1).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [resources, verbs @ ..] = &cells[..] else { panic!("{row}") };
        for (rights, verbs) in of_page.iter_mut().zip(verbs) {
            let verbs = verbs.split(", ").filter(|verb| !verb.is_empty() && !verb.contains(' '));
            for verb in verbs {
                let resources = resources.split(", ").map(|resource| resource.trim_matches('`'));
                rights.extend(resources.map(|resource| (resource.to_owned(), verb.to_owned())));
            }
        }
    }
    let of_file = |role: &str| -> BTreeSet<(String, String)> {
        granted(BY_HAND, role).into_iter().map(|(_, resource, verb)| (resource, verb)).collect()
    };
    let [agent, controller] = ["imagelet-manual-agent", "imagelet-manual-controller"].map(of_file);
    let gate = ("nodes/status".to_owned(), "patch".to_owned());
    assert_eq!(of_page, [agent.into_iter().chain([gate]).collect(), controller]);
}
