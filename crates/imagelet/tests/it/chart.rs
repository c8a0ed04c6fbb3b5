//! The Helm chart below deploy/, by what it renders: its names lead to one another, and no container has more than it needs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    program::{program, run},
    source::repository,
};

/// As deploy/imagelet.yaml is rendered.
const RENDER: [&str; 7] =
    ["template", "imagelet", "deploy/chart/imagelet", "--namespace", "kube-system", "--include-crds", "--no-hooks"];
const NAMESPACE: &str = "kube-system";

fn documents(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).expect("the manifests are YAML");
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

fn manifests() -> Vec<Value> {
    documents(&fs::read_to_string(repository().join("deploy/imagelet.yaml")).unwrap())
}

/// The one object of this kind and name.
fn object<'a>(manifests: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let mut found = manifests.iter().filter(|one| one["kind"] == kind && one["metadata"]["name"] == name);
    let first = found.next().unwrap_or_else(|| panic!("no {kind} `{name}`"));
    assert!(found.next().is_none(), "two {kind} `{name}`");
    first
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn helm(arguments: &[&str]) -> String {
    let mut command = Command::new("helm");
    let output = command.args(arguments).current_dir(repository()).stdin(Stdio::null()).output().expect("helm starts");
    assert!(output.status.success(), "helm {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "needs helm, which Debian does not have: `make chart-check`"]
fn the_rendered_manifests_are_those_of_the_chart() {
    let rendered = helm(&RENDER);
    if std::env::var_os("IMAGELET_UPDATE").is_some() {
        fs::write(repository().join("deploy/imagelet.yaml"), &rendered).unwrap();
    }
    let by_name = |documents: Vec<Value>| -> BTreeMap<String, Value> {
        let name =
            |one: &Value| format!("{} {} {}", one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]);
        documents.into_iter().map(|one| (name(&one), one)).collect()
    };
    assert_eq!(by_name(manifests()), by_name(documents(&rendered)), "IMAGELET_UPDATE=1 writes deploy/imagelet.yaml");

    // With everything that is off by default.
    let values = [
        "gate=true",
        "serviceMonitor.enabled=true",
        "networkPolicy.enabled=true",
        r#"node={"role":"between","pullSecrets":[{"namespace":"shop","names":["login"]}]}"#,
        r#"node.nodeSelector={"pool":null}"#,
        r#"node.proxyPasswordSecret={"name":"proxy","key":"word"}"#,
        r#"removal={"deadlineSeconds":3600}"#,
    ];
    let mut arguments = RENDER[..5].to_vec();
    arguments.extend(values.iter().flat_map(|value| ["--set-json", *value]));
    let all = documents(&helm(&arguments));
    check_names(&all);
    check_containers(&all);
    let secrets = &object(&all, "Role", "imagelet-pull-secrets")["rules"];
    let expected = json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["login"], "verbs": ["get"]}]);
    assert_eq!(*secrets, expected);
    let selector = &object(&all, "DaemonSet", "imagelet-node")["spec"]["template"]["spec"]["nodeSelector"];
    assert_eq!(*selector, json!({"kubernetes.io/os": "linux"}), "`null` takes a key out");
    let pod = &object(&all, "DaemonSet", "imagelet-node")["spec"]["template"]["spec"];
    let volume =
        list(&pod["volumes"]).find(|volume| volume["name"] == "proxy-password").expect("the secret is mounted");
    assert_eq!(volume["secret"]["secretName"], "proxy");
    let install = &pod["initContainers"][0];
    let mount = list(&install["volumeMounts"]).find(|mount| mount["name"] == "proxy-password").unwrap();
    let read = format!("--proxy-password={}/word", mount["mountPath"].as_str().unwrap());
    assert!(list(&install["args"]).any(|argument| *argument == read), "{install}");
    check_gate(&all);
    let subjects = r#"node.subjects=[{"kind":"ServiceAccount","namespace":"kube-system","name":"imagelet-controller"},{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"o'hara"}]"#;
    let arguments = [&RENDER[..5], &["--set", "gate=true", "--set-json", subjects]].concat();
    let with_accounts = documents(&helm(&arguments));
    check_gate(&with_accounts);
    let policy = &object(&with_accounts, "ValidatingAdmissionPolicy", "imagelet-node-gate")["spec"];
    let user = "request.userInfo.username == ";
    let expected = format!(r#"{user}"system:serviceaccount:kube-system:imagelet-controller" || {user}"o'hara""#);
    assert_eq!(policy["matchConditions"][0]["expression"], expected);
    let monitor = &object(&all, "ServiceMonitor", "imagelet")["spec"];
    let service = object(&all, "Service", "imagelet-node");
    assert_eq!(monitor["endpoints"][0]["port"], service["spec"]["ports"][0]["name"]);
    assert!(is_selected(&monitor["selector"]["matchLabels"], &service["metadata"]["labels"]));
}

/// Whether a role grants a right on this resource.
fn grants(manifests: &[Value], resource: &str) -> bool {
    let rules = manifests.iter().flat_map(|one| list(&one["rules"]));
    rules.flat_map(|rule| list(&rule["resources"])).any(|one| *one == resource)
}

/// The right on the status of nodes has a policy that limits each of its subjects.
fn check_gate(manifests: &[Value]) {
    let rules = &object(manifests, "ClusterRole", "imagelet-node-gate")["rules"];
    assert_eq!(*rules, json!([{"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}]));
    let subjects = &object(manifests, "ClusterRoleBinding", "imagelet-node-gate")["subjects"];
    let policy = &object(manifests, "ValidatingAdmissionPolicy", "imagelet-node-gate")["spec"];
    let conditions: Vec<&Value> = list(&policy["matchConditions"]).collect();
    let [condition] = conditions[..] else { panic!("{conditions:?}") };
    for subject in list(subjects) {
        let name = subject["name"].as_str().unwrap();
        assert!(condition["expression"].as_str().unwrap().contains(name), "{condition} leaves out {name}");
    }
    assert_eq!(policy["failurePolicy"], "Fail");
    let matched = &policy["matchConstraints"]["resourceRules"][0];
    assert_eq!((&matched["resources"], &matched["operations"]), (&json!(["nodes/status"]), &json!(["UPDATE"])));
    let names_the_condition =
        list(&policy["validations"]).any(|one| one["expression"].to_string().contains("'imagelet.dev/ImagesReady'"));
    assert!(names_the_condition, "{policy}");
    let binding = &object(manifests, "ValidatingAdmissionPolicyBinding", "imagelet-node-gate")["spec"];
    assert_eq!(binding["validationActions"], json!(["Deny"]));
}

#[test]
fn the_status_of_nodes_is_granted_with_the_gate_alone() {
    assert!(!grants(&manifests(), "nodes/status"), "the gate is off by default");
    let template = repository().join("deploy/chart/imagelet/templates/node-rights.yaml");
    let text = fs::read_to_string(template).unwrap();
    let (before, rest) = text.split_once("{{- if .Values.gate }}\n").expect("a part of the gate");
    let (of_gate, after) = rest.split_once("{{- end }}\n").expect("its end");
    assert!(!before.contains("nodes/status") && !after.contains("nodes/status"));
    // The lines of the template language have labels, subjects and the subjects' condition.
    let plain: Vec<&str> = of_gate.lines().filter(|line| !line.contains("{{")).collect();
    let of_gate = documents(&plain.join("\n"));
    assert!(grants(&of_gate, "nodes/status"));
    let mut kinds: Vec<&str> = of_gate.iter().filter_map(|one| one["kind"].as_str()).collect();
    kinds.sort_unstable();
    let policy = "ValidatingAdmissionPolicy";
    assert_eq!(kinds, ["ClusterRole", "ClusterRoleBinding", policy, "ValidatingAdmissionPolicyBinding"]);
    assert_eq!(list(&object(&of_gate, policy, "imagelet-node-gate")["spec"]["validations"]).count(), 4);
}

#[test]
fn the_names_of_the_manifests_lead_to_one_another() {
    check_names(&manifests());
}

#[test]
fn a_container_has_the_rights_that_it_needs_and_no_more() {
    check_containers(&manifests());
}

#[test]
fn the_version_of_the_chart_is_that_of_the_program_and_its_definitions_are_those_that_it_prints() {
    let text = fs::read_to_string(repository().join("deploy/chart/imagelet/Chart.yaml")).unwrap();
    let chart: Value = serde_saphyr::from_str(&text).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!((&chart["version"], &chart["appVersion"]), (&json!(version), &json!(version)));
    let manifests = manifests();
    for container in containers(&manifests) {
        assert_eq!(container["image"], format!("localhost/imagelet:{version}"));
    }
    let is_definition = |one: &&Value| one["kind"] == "CustomResourceDefinition";
    let of_program = documents(&run(program().args(["prefetch", "crds"])).ok());
    let of_manifests: Vec<&Value> = manifests.iter().filter(is_definition).collect();
    assert_eq!(of_manifests, of_program.iter().collect::<Vec<_>>());
}

#[test]
fn a_rollout_waits_for_each_node_and_nothing_in_a_pods_end_changes_its_host() {
    let manifests = manifests();
    let spec = &object(&manifests, "DaemonSet", "imagelet-node")["spec"];
    assert_eq!(spec["updateStrategy"]["type"], "RollingUpdate");
    // Ready once the init container has ended: the other one waits and is always ready.
    let pod = &spec["template"]["spec"];
    let names = |part: &str| list(&pod[part]).map(|one| one["name"].clone()).collect::<Vec<_>>();
    assert_eq!((names("initContainers"), names("containers")), (vec![json!("install")], vec![json!("wait")]));
    assert_eq!(pod["initContainers"][0]["restartPolicy"], Value::Null);
    assert_eq!(pod["automountServiceAccountToken"], false);
    for container in containers(&manifests) {
        assert_eq!(container["lifecycle"], Value::Null);
    }
    let controller =
        &object(&manifests, "Deployment", "imagelet-controller")["spec"]["template"]["spec"]["containers"][0];
    let port = &controller["ports"][0];
    assert!(list(&controller["args"]).any(|one| *one == format!("--health={}", port["containerPort"])), "{controller}");
    for (probe, path) in [("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
        assert_eq!(controller[probe]["httpGet"], json!({"path": path, "port": port["name"]}));
    }
    let hooks = |one: &&Value| one["metadata"]["annotations"].to_string().contains("helm.sh/hook");
    assert_eq!(manifests.iter().filter(hooks).count(), 0, "kubectl would run it at once");
}

/// The pods of all objects.
fn pods(manifests: &[Value]) -> Vec<&Value> {
    manifests.iter().map(|one| &one["spec"]["template"]["spec"]).filter(|pod| !pod.is_null()).collect()
}

fn containers(manifests: &[Value]) -> Vec<&Value> {
    let found = pods(manifests).into_iter().flat_map(|pod| ["initContainers", "containers"].map(|part| &pod[part]));
    found.flat_map(list).collect()
}

fn is_selected(selector: &Value, labels: &Value) -> bool {
    selector.as_object().is_some_and(|wanted| wanted.iter().all(|(key, value)| labels[key] == *value))
}

fn check_names(manifests: &[Value]) {
    let mut names = BTreeSet::new();
    for one in manifests {
        let metadata = &one["metadata"];
        assert!(names.insert(format!("{} {} {}", one["kind"], metadata["namespace"], metadata["name"])), "{metadata}");
    }
    let exists =
        |kind: &str, namespace: &Value, name: &Value| names.contains(&format!("\"{kind}\" {namespace} {name}"));
    let namespace = json!(NAMESPACE);
    for one in manifests {
        let kind = one["kind"].as_str().unwrap();
        if kind.ends_with("Binding") && kind != "ValidatingAdmissionPolicyBinding" {
            let role = &one["roleRef"];
            let of_role = if role["kind"] == "Role" { &one["metadata"]["namespace"] } else { &Value::Null };
            assert!(exists(role["kind"].as_str().unwrap(), of_role, &role["name"]), "{role}");
            for subject in list(&one["subjects"]) {
                let is_there = exists("ServiceAccount", &subject["namespace"], &subject["name"]);
                assert!(is_there || subject["name"] == "system:nodes", "{subject}");
            }
        }
        if let Some(policy) = one["spec"]["policyName"].as_str() {
            assert!(exists("ValidatingAdmissionPolicy", &Value::Null, &json!(policy)), "{policy}");
        }
        let template = &one["spec"]["template"];
        if template["spec"].is_null() {
            continue;
        }
        assert_eq!(one["metadata"]["namespace"], namespace);
        assert!(exists("ServiceAccount", &namespace, &template["spec"]["serviceAccountName"]), "{template}");
        if kind != "Job" {
            assert!(is_selected(&one["spec"]["selector"]["matchLabels"], &template["metadata"]["labels"]), "{one}");
        }
        let volumes: BTreeSet<&str> =
            list(&template["spec"]["volumes"]).filter_map(|one| one["name"].as_str()).collect();
        let of_pod = ["initContainers", "containers"].into_iter().flat_map(|part| list(&template["spec"][part]));
        let mounted: BTreeSet<&str> =
            of_pod.flat_map(|one| list(&one["volumeMounts"])).filter_map(|mount| mount["name"].as_str()).collect();
        assert_eq!(mounted, volumes);
        for map in list(&template["spec"]["volumes"]).filter_map(|volume| volume["configMap"]["name"].as_str()) {
            assert!(exists("ConfigMap", &namespace, &json!(map)), "{map}");
        }
    }
}

fn check_containers(manifests: &[Value]) {
    for pod in pods(manifests) {
        assert!(["hostPID", "hostIPC"].iter().all(|share| pod[share].is_null()), "{pod}");
        let of_host: Vec<&Value> =
            list(&pod["volumes"]).map(|one| &one["hostPath"]).filter(|one| !one.is_null()).collect();
        assert!(of_host.iter().all(|one| **one == json!({"path": "/proc/1/ns", "type": "Directory"})), "{of_host:?}");
    }
    let mut of_host = 0;
    for container in containers(manifests) {
        let context = &container["securityContext"];
        assert_eq!(context["privileged"], false, "{container}");
        assert_eq!(context["readOnlyRootFilesystem"], true, "{container}");
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{container}");
        assert_eq!(context["seccompProfile"], json!({"type": "RuntimeDefault"}), "{container}");
        assert!(!container["resources"]["requests"].is_null(), "{container}");
        if container["name"] == "install" {
            of_host += 1;
            let added = json!(["SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"]);
            assert_eq!(context["capabilities"]["add"], added, "setns, and what it asks for: {container}");
            assert!(list(&container["volumeMounts"]).all(|mount| mount["readOnly"] == true), "{container}");
            continue;
        }
        assert_eq!((&context["runAsNonRoot"], &context["runAsUser"]), (&json!(true), &json!(65532)), "{container}");
        assert_eq!(context["allowPrivilegeEscalation"], false, "{container}");
        assert_eq!((&context["capabilities"]["add"], &container["volumeMounts"]), (&Value::Null, &Value::Null));
    }
    assert_eq!(of_host, 1, "one container enters the host");
}
