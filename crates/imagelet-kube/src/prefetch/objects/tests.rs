//! The CustomResourceDefinitions against the types, and specs that are refused.

use std::collections::{BTreeMap, BTreeSet};

use imagelet_core::image::Reference;
use imagelet_vectors::vectors;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use regex_lite::Regex;
use serde_json::{Value, from_value, json, to_value};

use super::{
    pod_selector::{LABEL_LENGTH_MAX, LABELS_MAX, LabelOperator, LabelRequirement, VALUES_MAX, is_label},
    set_spec::{ImageSetSpec, PLATFORM_LENGTH_MAX, REFERENCE_LENGTH_MAX},
    testing::set,
    values::SetDuration,
    *,
};

/// The definitions by kind.
fn definitions() -> BTreeMap<String, Value> {
    let documents = CRDS.split("\n---\n").map(|text| serde_saphyr::from_str::<Value>(text).expect("it is YAML"));
    documents.map(|it| (it["spec"]["names"]["kind"].as_str().expect("a kind").to_owned(), it)).collect()
}

fn schema(kind: &str) -> Value {
    definitions()[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Every field of a schema, with its path.
fn fields(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        fields(field, &path, found);
        fields(&field["items"], &format!("{path}[]"), found);
        found.insert(path);
    }
}

fn fields_of_schema(kind: &str, part: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    fields(&schema(kind)["properties"][part], part, &mut found);
    fields(&schema(kind)["properties"][part]["items"], &format!("{part}[]"), &mut found);
    found
}

/// Every field of a value, with its path; the keys of labels are no fields.
fn fields_of(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !path.ends_with("nodeSelector") && !path.ends_with("matchLabels") => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                fields_of(value, &path, found);
                found.insert(path);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields_of(item, &format!("{path}[]"), found)),
        _ => {}
    }
}

fn all_fields_of(value: &Value, part: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    fields_of(value, part, &mut found);
    found
}

/// A spec with every field.
fn whole_spec(scope: SetScope) -> Value {
    let mut image = json!({"reference": "registry.example/app:v1", "platform": "linux/arm64/v8"});
    if scope == SetScope::Namespace {
        image["pullSecret"] = "login".into();
    }
    json!({
        "images": [image], "nodeSelector": {"pool": "gpu"}, "keep": true, "gate": false, "maxConcurrentNodes": "10%",
        "podSelector": {
            "matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["front"]}],
        },
        "deadline": "2h0m0s", "ttlAfterFinished": "24h0m0s", "paused": true, "pullPolicy": "Always",
    })
}

#[test]
fn each_field_of_a_spec_decodes_and_is_in_the_schema_and_an_unknown_one_is_refused() {
    for scope in SetScope::ALL {
        let whole = whole_spec(scope);
        let spec = ImageSetSpec::read(&whole, scope).unwrap();
        let expected = ImageSetSpec {
            images: vec![SetImage {
                reference: "registry.example/app:v1".to_owned(),
                pull_secret: (scope == SetScope::Namespace).then(|| "login".to_owned()),
                platform: Some("linux/arm64/v8".to_owned()),
            }],
            node_selector: BTreeMap::from([("pool".to_owned(), "gpu".to_owned())]),
            pod_selector: Some(PodSelector {
                match_labels: BTreeMap::from([("app".to_owned(), "web".to_owned())]),
                match_expressions: vec![LabelRequirement {
                    key: "tier".to_owned(),
                    operator: LabelOperator::In,
                    values: vec!["front".to_owned()],
                }],
            }),
            keep: true,
            gate: false,
            max_concurrent_nodes: Some(NodeLimit::Percent(10)),
            deadline: SetDuration::try_from("2h".to_owned()).ok(),
            ttl_after_finished: SetDuration::try_from("24h".to_owned()).ok(),
            paused: true,
            pull_policy: SetPullPolicy::Always,
        };
        assert_eq!(spec, expected, "nothing is lost");
        assert_eq!(all_fields_of(&whole, "spec"), fields_of_schema(scope.kind(), "spec"), "{}", scope.kind());
        for field in whole.as_object().unwrap().keys().filter(|field| *field != "images") {
            let one = json!({"images": [{"reference": "app:v1"}], field.as_str(): whole[field]});
            ImageSetSpec::read(&one, scope).unwrap_or_else(|error| panic!("{field}: {error}"));
        }
        let unknown = json!({"images": [{"reference": "app:v1"}], "keepAll": true});
        let error = ImageSetSpec::read(&unknown, scope).unwrap_err().to_string();
        assert!(error.contains("unknown field `keepAll`"), "{error}");
    }
}

#[test]
fn what_the_controller_and_the_agents_write_is_in_the_schema() {
    let failure = FailureCount { class: "forbidden".into(), ..FailureCount::default() };
    let time = Time("2026-01-01T00:00:00Z".parse().unwrap());
    let condition = Condition {
        type_: "Complete".into(),
        status: "True".into(),
        reason: "Complete".into(),
        message: String::new(),
        observed_generation: Some(1),
        last_transition_time: time.clone(),
    };
    let status = SetStatus {
        observed_generation: 1,
        started_at: Some(time.clone()),
        finished_at: Some(time),
        wave: Some(WaveStatus { cut: 1 }),
        nodes: NodeCounts::default(),
        failures: vec![failure],
        conditions: vec![condition],
    };
    for scope in SetScope::ALL {
        let written = to_value(&status).unwrap();
        assert_eq!(all_fields_of(&written, "status"), fields_of_schema(scope.kind(), "status"));
    }
    let image = ImageReport {
        reference: "app:v1".into(),
        platform: Some("linux/amd64".into()),
        phase: ImagePhase::Failed,
        bytes: Some(1),
        bytes_total: Some(2),
        class: "forbidden".into(),
        hop: "token".into(),
        message: "no".into(),
    };
    let report = SetReport { namespace: "shop".into(), images: vec![image], ..SetReport::default() };
    let written = to_value([report]).unwrap();
    assert_eq!(all_fields_of(&written, "sets"), fields_of_schema("NodeImages", "sets"));
}

#[test]
fn the_schema_has_the_bounds_and_words_of_the_program() {
    for scope in SetScope::ALL {
        let spec = &schema(scope.kind())["properties"]["spec"]["properties"];
        assert_eq!(spec["images"]["maxItems"], IMAGES_MAX);
        let image = &spec["images"]["items"]["properties"];
        assert_eq!(image["reference"]["maxLength"], REFERENCE_LENGTH_MAX);
        assert_eq!(image["platform"]["maxLength"], PLATFORM_LENGTH_MAX);
        assert_eq!(spec["nodeSelector"]["maxProperties"], LABELS_MAX);
        assert_eq!(spec["nodeSelector"]["additionalProperties"]["maxLength"], LABEL_LENGTH_MAX);
        let pods = &spec["podSelector"]["properties"];
        assert_eq!(
            (&pods["matchLabels"]["maxProperties"], &pods["matchExpressions"]["maxItems"]),
            (&json!(LABELS_MAX), &json!(LABELS_MAX))
        );
        assert_eq!(pods["matchLabels"]["additionalProperties"]["maxLength"], LABEL_LENGTH_MAX);
        let required = &pods["matchExpressions"]["items"]["properties"];
        assert_eq!(
            (&required["key"]["maxLength"], &required["values"]["maxItems"]),
            (&json!(LABEL_LENGTH_MAX), &json!(VALUES_MAX))
        );
        assert_eq!(required["values"]["items"]["maxLength"], LABEL_LENGTH_MAX);
        for operator in required["operator"]["enum"].as_array().unwrap() {
            let values = if ["In", "NotIn"].iter().any(|it| operator == it) { json!(["x"]) } else { json!([]) };
            let selector = json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]});
            let one = json!({"images": [{"reference": "app"}], "podSelector": selector});
            ImageSetSpec::read(&one, scope).unwrap_or_else(|error| panic!("{operator}: {error}"));
        }
        let policies: Vec<SetPullPolicy> = from_value(spec["pullPolicy"]["enum"].clone()).unwrap();
        assert_eq!(policies, [SetPullPolicy::Always, SetPullPolicy::IfNotPresent]);
        for field in ["maxConcurrentNodes", "deadline", "ttlAfterFinished"] {
            assert!(spec[field]["x-kubernetes-validations"][0]["rule"].is_string(), "{field}");
        }
    }
    let sets = &schema("NodeImages")["properties"]["sets"];
    let phases =
        [SetPhase::Waiting, SetPhase::Paused, SetPhase::Pulling, SetPhase::Ready, SetPhase::Failed, SetPhase::Expired];
    assert_eq!(sets["items"]["properties"]["phase"]["enum"], json!(phases.map(|it| to_value(it).unwrap())));
    let images = &sets["items"]["properties"]["images"];
    assert_eq!(images["maxItems"], IMAGES_MAX);
    let phases =
        [ImagePhase::Pending, ImagePhase::Pulling, ImagePhase::Present, ImagePhase::Removed, ImagePhase::Failed];
    assert_eq!(images["items"]["properties"]["phase"]["enum"], json!(phases.map(|it| to_value(it).unwrap())));
}

#[test]
fn every_field_is_described_and_every_kind_has_a_short_name_and_columns() {
    let definitions = definitions();
    assert_eq!(definitions.keys().collect::<Vec<_>>(), ["ClusterImageSet", "ImageSet", "NodeImages"]);
    for (kind, definition) in &definitions {
        let version = &definition["spec"]["versions"][0];
        assert_eq!(version["name"], PREFETCH_GROUP.rsplit('/').next().unwrap());
        assert!(definition["spec"]["names"]["shortNames"][0].is_string(), "{kind}");
        assert!(version["additionalPrinterColumns"].as_array().is_some_and(|columns| columns.len() >= 3), "{kind}");
        let has_status = version["subresources"]["status"].is_object();
        assert_eq!(has_status, kind != "NodeImages", "{kind}");
        let undescribed = undescribed(&version["schema"]["openAPIV3Schema"], "");
        assert_eq!(undescribed, ["apiVersion", "kind", "metadata"].map(|it| format!(".{it}")), "{kind}");
    }
}

fn undescribed(schema: &Value, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        if field["description"].as_str().is_none_or(str::is_empty) {
            found.push(path.clone());
        }
        found.extend(undescribed(field, &path));
        found.extend(undescribed(&field["items"], &path));
    }
    found
}

#[test]
fn the_definitions_of_the_chart_are_those_that_the_program_prints() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/chart/imagelet/crds/imagelet.yaml");
    if std::env::var_os("IMAGELET_UPDATE").is_some() {
        std::fs::write(path, CRDS).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap();
    assert!(committed == CRDS, "{path} is not what `imagelet prefetch crds` prints; IMAGELET_UPDATE=1 writes it");
}

/// The rule of the schema for references: a regular expression of RE2.
fn reference_rule(kind: &str) -> Regex {
    let reference = &schema(kind)["properties"]["spec"]["properties"]["images"]["items"]["properties"]["reference"];
    assert_eq!((&reference["minLength"], &reference["maxLength"]), (&json!(1), &json!(REFERENCE_LENGTH_MAX)));
    let rule = reference["x-kubernetes-validations"][0]["rule"].as_str().expect("a rule");
    let pattern = rule.strip_prefix("self.matches(r'").and_then(|rest| rest.strip_suffix("')"));
    Regex::new(pattern.expect("one match of a raw text")).expect("a pattern")
}

#[test]
fn the_schema_accepts_each_reference_that_a_node_does_and_refuses_all_others_but_a_few() {
    let rules = SetScope::ALL.map(|scope| reference_rule(scope.kind()));
    assert_eq!(rules[0].as_str(), rules[1].as_str());
    let [rule, _] = rules;
    let cases = vectors("pull-reference.json");
    let written = [
        "",
        "App",
        "registry.example/Team/app",
        "REGISTRY.example/app",
        "app:",
        "app\n",
        " app",
        "a//b",
        "a/",
        "app@sha256:0",
    ];
    let given = cases.iter().map(|case| case["input"]["image"].as_str().expect("a text")).chain(written);
    let is_counted = |error: &str| {
        error.contains("cannot specify 64-byte hexadecimal strings") || error.contains("more than 255 characters")
    };
    let mut counts = [0; 3];
    for image in given.filter(|image| image.len() <= REFERENCE_LENGTH_MAX) {
        let parsed = image.parse::<Reference>();
        match (&parsed, rule.is_match(image)) {
            (Ok(_), true) => counts[0] += 1,
            (Err(_), false) => counts[1] += 1,
            // A pattern does not count characters over several parts.
            (Err(error), true) if is_counted(&error.to_string()) => counts[2] += 1,
            (Err(error), true) => panic!("a node refuses `{image}`, and the schema does not: {error}"),
            (Ok(_), false) => panic!("the schema refuses `{image}`"),
        }
    }
    assert!(counts[0] > 80 && counts[1] > 80, "{counts:?}");
    for (image, is_accepted) in
        [("registry.example:5000/team/app:v1", true), ("registry.example/App", false), ("Registry.example/app", true)]
    {
        assert_eq!((image.parse::<Reference>().is_ok(), rule.is_match(image)), (is_accepted, is_accepted), "{image}");
    }
}

#[test]
fn the_schema_takes_no_label_and_no_gated_set_that_a_node_refuses() {
    let pattern = |text: &Value| Regex::new(text.as_str().expect("a pattern")).expect("a pattern");
    let of_keys = |map: &Value| {
        let rule = map["x-kubernetes-validations"][0]["rule"].as_str().expect("a rule");
        let start = format!("self.all(key, size(key) <= {LABEL_LENGTH_MAX} && key.matches('");
        let text = rule.strip_prefix(&start).and_then(|rest| rest.strip_suffix("'))"));
        pattern(&json!(text))
    };
    for scope in SetScope::ALL {
        let spec = &schema(scope.kind())["properties"]["spec"];
        let gated = &spec["x-kubernetes-validations"][0]["rule"];
        assert_eq!(gated, "!(has(self.gate) && self.gate && has(self.ttlAfterFinished))");
        let pods = &spec["properties"]["podSelector"]["properties"];
        let required = &pods["matchExpressions"]["items"]["properties"];
        let [nodes, pods] = [&spec["properties"]["nodeSelector"], &pods["matchLabels"]];
        let keys = [of_keys(nodes), of_keys(pods), pattern(&required["key"]["pattern"])];
        let of_values = |map: &Value| pattern(&map["additionalProperties"]["pattern"]);
        let values = [of_values(nodes), of_values(pods), pattern(&required["values"]["items"]["pattern"])];
        for text in ["", "app", "app.kubernetes.io/name", "a\n", "\n", "a\u{1b}", "\u{85}", "\u{e4}"] {
            for (key, value) in keys.iter().zip(&values) {
                let found = [key.is_match(text), value.is_match(text)];
                assert_eq!(
                    found,
                    [is_label(text, ""), is_label("a", text)].map(|it| it && text.is_ascii()),
                    "{text:?}"
                );
            }
        }
    }
}

#[test]
fn a_spec_that_breaks_a_rule_is_refused_by_the_field_and_the_limit() {
    let long = "a".repeat(REFERENCE_LENGTH_MAX + 1);
    let image = |image: Value| json!({"images": [image]});
    let many: Vec<Value> = (0..=IMAGES_MAX).map(|at| json!({"reference": format!("app:{at}")})).collect();
    let labels: BTreeMap<String, &str> = (0..=LABELS_MAX).map(|at| (at.to_string(), "x")).collect();
    let selecting = |selector: Value| json!({"images": [{"reference": "a"}], "podSelector": selector});
    let required = |requirement: Value| selecting(json!({"matchExpressions": [requirement]}));
    for (spec, why) in [
        (json!(null), "spec: "),
        (json!([]), "spec: "),
        (json!({}), "missing field `images`"),
        (json!({"images": many}), "spec.images has 65 items; there may be 1 to 64"),
        (image(json!({})), "missing field `reference`"),
        (image(json!({"reference": ""})), "spec.images[0].reference: ``: invalid reference format"),
        (image(json!({"reference": "a b\u{1b}"})), "spec.images[0].reference: `a b?`: "),
        (image(json!({"reference": long})), "the name has 1025 bytes; the limit is 1024"),
        (image(json!({"reference": "user:secret@registry/app!"})), "[redacted]"),
        (image(json!({"reference": "app", "pullSecret": "Login"})), "`Login` is no name of a secret"),
        (image(json!({"reference": "app", "pullSecret": "../x"})), "`../x` is no name of a secret"),
        (image(json!({"reference": "app", "pullSecret": "-x"})), "`-x` is no name of a secret"),
        (image(json!({"reference": "app", "platform": "arm64"})), "spec.images[0].platform: "),
        (
            image(json!({"reference": "app", "platform": format!("linux/{}", "a".repeat(80))})),
            "the text is longer than 64 bytes",
        ),
        (
            json!({"images": [{"reference": "app"}, {"reference": "app", "pullSecret": "x"}]}),
            "spec.images[1].reference: `app` is listed twice for one platform",
        ),
        (json!({"images": [{"reference": "a"}], "nodeSelector": labels}), "spec.nodeSelector has 33 items"),
        (json!({"images": [{"reference": "a"}], "nodeSelector": {"": "x"}}), "`=x` is no label"),
        (selecting(json!({"matchLabels": labels})), "spec.podSelector.matchLabels has 33 items; there may be 0 to 32"),
        (selecting(json!({"matchLabels": {"a": "x\u{1b}"}})), "spec.podSelector.matchLabels: `a=x?` is no label"),
        (selecting(json!({"labels": {}})), "unknown field `labels`"),
        (
            required(json!({"key": "", "operator": "Exists"})),
            "spec.podSelector.matchExpressions[0].key: `` is no label",
        ),
        (required(json!({"key": "a", "operator": "Gt", "values": ["1"]})), "unknown variant `Gt`"),
        (required(json!({"key": "a", "operator": "In"})), "values has 0 items; with `In` there may be 1 to 64"),
        (
            required(json!({"key": "a", "operator": "Exists", "values": ["x"]})),
            "values has 1 items; with `Exists` there may be 0 to 0",
        ),
        (required(json!({"key": "a", "operator": "NotIn", "values": ["\n"]})), "values: `?` is no value of a label"),
        (
            json!({"images": [{"reference": "a"}], "gate": true, "ttlAfterFinished": "1h"}),
            "spec.ttlAfterFinished: the end of a set with `gate` ends the condition of its nodes",
        ),
        (json!({"images": [{"reference": "a"}], "deadline": "0s"}), "`0s` is no duration"),
        (json!({"images": [{"reference": "a"}], "maxConcurrentNodes": 0}), "`0` is no number of nodes"),
        (json!({"images": [{"reference": "a"}], "pullPolicy": "Never"}), "unknown variant `Never`"),
    ] {
        let error = ImageSetSpec::read(&spec, SetScope::Namespace).unwrap_err().to_string();
        assert!(error.contains(why) && error.len() < 400 && !error.contains("secret@"), "{spec}: {error}");
    }
    let one_image_for_two_platforms = json!({"images": [
        {"reference": "app", "platform": "linux/amd64"}, {"reference": "app", "platform": "linux/arm64"},
    ]});
    ImageSetSpec::read(&one_image_for_two_platforms, SetScope::Namespace).unwrap();
}

#[test]
fn a_set_of_the_cluster_has_no_pull_secrets_and_no_namespace() {
    let spec = json!({"images": [{"reference": "app", "pullSecret": "login"}]});
    let error = ImageSetSpec::read(&spec, SetScope::Cluster).unwrap_err().to_string();
    assert!(error.starts_with("spec.images[0].pullSecret: "), "{error}");
    for (scope, namespace, is_valid) in [
        (SetScope::Namespace, "shop", true),
        (SetScope::Namespace, "", false),
        (SetScope::Namespace, "a/b", false),
        (SetScope::Cluster, "", true),
        (SetScope::Cluster, "shop", false),
    ] {
        let name = SetName { scope, namespace: namespace.into(), name: "web".into() };
        assert_eq!(name.is_valid(), is_valid, "{name}");
    }
}

#[test]
fn one_object_that_cannot_be_read_ends_no_list_and_a_status_that_cannot_is_empty() {
    let object =
        json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"images": 5}, "status": {"nodes": 7}});
    let object: SetObject = from_value(object).unwrap();
    assert!(object.read(SetScope::Namespace).is_err());
    let mut object = json!({"metadata": {"name": "web", "namespace": "shop"}, "status": {"nodes": 7}});
    object["spec"] = json!({"images": [{"reference": "app"}]});
    let object: SetObject = from_value(object).unwrap();
    let set = object.read(SetScope::Namespace).unwrap().unwrap();
    assert_eq!(set.status, SetStatus::default());
}

#[test]
fn a_node_is_selected_by_all_labels_and_admitted_by_its_place() {
    let mut set = set("web", &["app:v1"]);
    let labels = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
    assert!(set.spec.selects(&labels(&[])));
    set.spec.node_selector = labels(&[("pool", "gpu"), ("zone", "a")]);
    assert!(set.spec.selects(&labels(&[("pool", "gpu"), ("zone", "a"), ("x", "y")])));
    assert!(!set.spec.selects(&labels(&[("pool", "gpu")])));
    assert!(!set.spec.selects(&labels(&[("pool", "gpu"), ("zone", "b")])));

    assert!(set.admits("node-1"), "without a limit each node begins at once");
    set.spec.max_concurrent_nodes = Some(NodeLimit::Count(1));
    assert!(!set.admits("node-1"), "before the controller has seen the spec");
    let place = set.place_of("node-1");
    assert!(place < PLACES && place != set.place_of("node-2"));
    for (generation, cut, is_admitted) in [(1, place, false), (1, place + 1, true), (2, PLACES, false)] {
        let wave = Some(WaveStatus { cut });
        set.status = SetStatus { observed_generation: generation, wave, ..SetStatus::default() };
        assert_eq!(set.admits("node-1"), is_admitted, "{generation} {cut}");
    }
}

#[test]
fn a_deadline_counts_from_the_start_of_the_spec() {
    let mut set = set("web", &["app:v1"]);
    assert_eq!(set.deadline(), None);
    set.spec.deadline = Some("1h".to_owned().try_into().unwrap());
    let deadline = |set: &ImageSet| set.deadline().map(|at| jiff::Timestamp::try_from(at).unwrap().to_string());
    assert_eq!(deadline(&set).as_deref(), Some("2026-01-01T01:00:00Z"), "from the creation");
    set.status.observed_generation = 1;
    set.status.started_at = Some(Time("2026-02-01T00:00:00Z".parse().unwrap()));
    assert_eq!(deadline(&set).as_deref(), Some("2026-02-01T01:00:00Z"));
    set.generation = 2;
    assert_eq!(set.deadline(), None, "the controller has not seen the new spec");
}
