//! Tests of manifests as a user writes them and the requests that follow.

use super::*;

const SECRET: &str = "kind: Secret\nmetadata: {name: reg}\ntype: kubernetes.io/dockerconfigjson\ndata: {.dockerconfigjson: eyJhdXRocyI6e319}\n";

fn file(name: &str, text: &str) -> ManifestFile {
    ManifestFile { name: name.into(), text: text.into() }
}

fn read(pods: &str, secrets: &str) -> Manifests {
    let secrets: Vec<_> = (!secrets.is_empty()).then(|| file("s.yaml", secrets)).into_iter().collect();
    Manifests::read(&[file("p.yaml", pods)], &secrets).expect("they read")
}

fn complaint(pods: &str, secrets: &str) -> String {
    let secrets: Vec<_> = (!secrets.is_empty()).then(|| file("s.yaml", secrets)).into_iter().collect();
    Manifests::read(&[file("p.yaml", pods)], &secrets).expect_err("refused").to_string()
}

fn pod(spec: &str) -> String {
    format!("---\nkind: Pod\nmetadata: {{name: web}}\nspec: {{containers: [{{name: app, image: a}}], {spec}}}\n")
}

fn names(pod: &PodRequest) -> Vec<&str> {
    pod.secrets.iter().map(|secret| secret.name.as_str()).collect()
}

#[test]
fn secrets_come_in_the_pods_order_and_empty_names_are_skipped() {
    let named = |name: &str| SECRET.replace("reg", name);
    let secrets = format!("{}---\n{}", named("one"), named("two"));
    let read = read(&pod("imagePullSecrets: [{name: two}, {name: ''}, {name: gone}, {}, {name: one}]"), &secrets);
    assert_eq!(names(&read.pods[0]), ["two", "one"]);
    assert_eq!(read.pods[0].secrets_unread, ["gone"]);
    assert_eq!(read.notes, ["the pull secret `default/gone` was not given with --secret; going on without it"]);
}

#[test]
fn a_pod_without_pull_secrets_has_those_of_its_service_account() {
    let account = |name: &str| {
        format!("---\nkind: ServiceAccount\nmetadata: {{name: {name}}}\nimagePullSecrets: [{{name: reg}}]\n")
    };
    for (spec, accounts, expected) in [
        ("", account("default"), vec!["reg"]),
        ("serviceAccountName: robot", account("robot"), vec!["reg"]),
        ("serviceAccountName: robot", account("default"), vec![]),
        ("imagePullSecrets: [{name: ''}]", account("default"), vec![]),
        ("", account("default").replace("{name: default}", "{name: default, namespace: other}"), vec![]),
    ] {
        let read = read(&(pod(spec) + &accounts), SECRET);
        assert_eq!(names(&read.pods[0]), expected, "{spec} {accounts}");
        let account = if spec.contains("robot") { "robot" } else { "default" };
        assert_eq!(read.pods[0].service_account, account);
    }
}

#[test]
fn a_secret_belongs_to_its_namespace_and_the_later_of_two_counts() {
    let other = SECRET.replace("{name: reg}", "{name: reg, namespace: ops}");
    let found = read(&pod("imagePullSecrets: [{name: reg}]"), &other);
    assert_eq!(found.pods[0].secrets_unread, ["reg"]);
    assert_eq!(found.notes.len(), 1, "a secret that no pod names gets no note: {:?}", found.notes);
    let later = SECRET.replace("eyJhdXRocyI6e319", "eyJhdXRocyI6e30gfQ==");
    let found = read(&pod("imagePullSecrets: [{name: reg}]"), &format!("{SECRET}---\n{later}"));
    let document = found.pods[0].secrets[0].docker_config.as_ref().expect("its document");
    assert_eq!(document.0.expose(), "{\"auths\":{} }");
    assert_eq!(found.notes, ["the secret `default/reg` in `s.yaml` is replaced by a later one of that name"]);
}

#[test]
fn a_secret_that_holds_no_credentials_is_not_missing_and_named_in_a_note() {
    let opaque = "kind: Secret\nmetadata: {name: reg}\ntype: Opaque\ndata: {password: aHVudGVyMg==}\n";
    let read = read(&pod("imagePullSecrets: [{name: reg}]"), opaque);
    assert!(read.pods[0].secrets.is_empty() && read.pods[0].secrets_unread.is_empty());
    assert_eq!(read.notes.len(), 1);
    assert!(read.notes[0].contains("`default/reg` in `s.yaml` holds no registry credentials, as its type is `Opaque`"));
}

#[test]
fn uids_are_stable_and_a_secrets_goes_with_what_it_holds() {
    let uids = |secret: &str| {
        let pod = read(&pod("imagePullSecrets: [{name: reg}]"), secret).pods.remove(0);
        (pod.pod.uid, pod.secrets[0].uid.clone())
    };
    let (first, again) = (uids(SECRET), uids(SECRET));
    assert_eq!(first, again);
    assert!(first.0.len() == 36 && first.0.as_bytes()[14] == b'8' && first.0 != first.1, "{first:?}");
    let other = uids(&SECRET.replace("eyJhdXRocyI6e319", "eyJhdXRocyI6e30gfQ=="));
    assert_eq!(other.0, first.0);
    assert_ne!(other.1, first.1, "a secret of another content is another secret");
    let written = uids(&SECRET.replace("{name: reg}", "{name: reg, uid: u-7}"));
    assert_eq!(written.1, "u-7");
}

#[test]
fn objects_without_images_are_skipped_and_counted_in_a_note() {
    let text = pod("")
        + "---\nkind: Service\n---\nkind: ConfigMap\ndata: {containers: x}\n---\nkind: Service\nmetadata: [odd]\n";
    assert_eq!(read(&text, "").notes, ["passed over 3 objects in `p.yaml` without images: ConfigMap, Service"]);
}

#[test]
fn files_that_do_not_say_what_they_should_are_refused_by_name() {
    assert_eq!(
        complaint("kind: Service\n", ""),
        "`p.yaml` describes no pod and nothing with a pod template; it has `Service`"
    );
    assert_eq!(complaint("# nothing\n", ""), "`p.yaml` describes no pod and nothing with a pod template and is empty");
    assert_eq!(complaint(&pod(""), &pod("")), "`s.yaml` was given as a secret; it has `Pod`");
}

/// What the failures of objects say.
fn failures(text: &str) -> Vec<String> {
    let read = Manifests::read(&[file("p.yaml", text)], &[]).expect("some read");
    read.failures.iter().map(|(_, failure)| failure.to_string()).collect()
}

#[test]
fn an_object_that_does_not_read_fails_alone_and_by_its_name() {
    let bad = pod("").replace("image: a", "image: {hunter2: 1}").replace("name: web", "name: bad, namespace: ops");
    let secret =
        "---\nkind: Secret\nmetadata: {name: s}\ntype: kubernetes.io/dockercfg\ndata: {.dockercfg: 'hunter2!'}\n";
    let text = format!("{}{bad}---\n{{kind: [hunter2\n---\nmetadata: {{name: x}}\n{secret}{}", pod(""), pod(""));
    let read = Manifests::read(&[file("p.yaml", &text)], &[]).expect("some read");
    assert_eq!(read.pods.len(), 2);
    assert_eq!(
        failures(&text),
        [
            "could not use Pod `ops/bad` in `p.yaml`: `spec.containers[0].image` of the manifest in line 6 is not a string",
            "could not use the document in line 10 of `p.yaml`: does not read as YAML or JSON in line 10, or has too many values",
            "could not use object `x` in `p.yaml`: the manifest in line 12 has no `kind`",
            "could not use Secret `s` in `p.yaml`: `data..dockercfg` of the secret in line 14 is not base64",
        ]
    );
}

/// Each image of a file, with the kind and the name of its pod.
fn images(text: &str) -> Vec<String> {
    let read = Manifests::read(&[file("p.yaml", text)], &[]).expect("it reads");
    assert_eq!(read.failures.len(), 0, "{:?}", read.failures);
    let of_pod = |pod: &PodRequest| {
        let name = format!("{} {}/{}", pod.kind, pod.pod.namespace, pod.pod.name);
        pod.images.iter().map(move |image| format!("{name} {}", image.image)).collect::<Vec<_>>()
    };
    read.pods.iter().flat_map(of_pod).collect()
}

#[test]
fn what_kubectl_reads_is_read() {
    let container = |image: &str| format!("{{\"containers\": [{{\"name\": \"c\", \"image\": \"{image}\"}}]}}");
    let json = |name: &str| {
        format!("{{\"kind\": \"Pod\", \"metadata\": {{\"name\": \"{name}\"}}, \"spec\": {}}}", container(name))
    };
    let [a, b] = ["a", "b"].map(json);
    let both = ["Pod default/a a", "Pod default/b b"];
    for text in [
        format!("{a}\n{b}\n"),
        format!("{a}{b}"),
        format!("{a}\n---\n{b}"),
        format!("# c\n--- # first\n{a}\n...\n%YAML 1.2\n--- {b}\n---\n"),
        format!("\u{feff}{a}\r\n---\r\n{b}\r\n").trim_start_matches('\u{feff}').to_owned(),
        format!("{{\"kind\": \"List\", \"items\": [{a}, {b}]}}"),
        format!("{{\"kind\": \"PodList\", \"items\": [{a}, {b}]}}").replace("\"kind\": \"Pod\", ", ""),
    ] {
        assert_eq!(images(&text), both, "{text}");
    }
    let kinds = "apiVersion: apps/v1\nkind: DeploymentList\nitems:\n- metadata: {name: d}\n  spec: {template: {spec: {containers: \
                 [{name: c, image: a, resources: {limits: {cpu: 1}}, ports: [{containerPort: '80'}]}]}}}\n";
    assert_eq!(images(kinds), ["Deployment default/d a"]);
}

#[test]
fn a_repeated_key_counts_as_the_later_one_with_one_warning_a_file() {
    let text = pod("").replace("image: a", "image: a, image: b");
    let read = read(&format!("{text}{text}"), "");
    assert_eq!((read.pods.len(), read.pods[0].images[0].image.as_str()), (2, "b"));
    assert_eq!(read.notes, ["`p.yaml` has a key twice in line 4; the later one counts"]);
    let json = r#"{"kind": "Pod", "metadata": {"name": "w", "name": "x"}, "spec": {"containers": [{"image": "a"}]}}"#;
    assert_eq!(images(json), ["Pod default/x a"]);
}

#[test]
fn templates_are_found_wherever_an_operator_has_them() {
    for (text, expected) in [
        (
            "kind: RayCluster\nmetadata: {name: ray}\nspec: {rayVersion: '2', headGroupSpec: {template: {spec: {containers: [{name: \
             head, image: ray:h}]}}}, workerGroupSpecs: [{groupName: g, template: {spec: {containers: [{name: w, image: ray:w}]}}}]}\n",
            &["RayCluster default/ray-1 ray:h", "RayCluster default/ray-2 ray:w"][..],
        ),
        (
            "kind: JobSet\nmetadata: {name: js, namespace: ml}\nspec: {replicatedJobs: [{name: w, template: {spec: {template: {spec: \
             {containers: [{name: c, image: train:1}], restartPolicy: Never}}}}}]}\n",
            &["JobSet ml/js train:1"],
        ),
        (
            "kind: Rollout\nmetadata: {name: r}\nspec: {template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: x}]}}}\n",
            &["Rollout default/r x"],
        ),
        (
            "kind: Prometheus\nmetadata: {name: p}\nspec: {image: prom, containers: [{name: proxy, image: proxy:1}, {name: prometheus}]}\n",
            &["Prometheus default/p proxy:1"],
        ),
        (
            "kind: Elasticsearch\nmetadata: {name: e}\nspec: {nodeSets: [{podTemplate: {spec: {containers: [{name: elasticsearch}]}}}]}\n\
             ---\nkind: Job\nmetadata: {name: j}\nspec: {template: {spec: {containers: [{image: a}]}}}\n",
            &["Job default/j a"],
        ),
        (
            "kind: CustomResourceDefinition\nmetadata: {name: c}\nspec: {versions: [{schema: {openAPIV3Schema: {properties: {containers: \
             {type: array}}}}}]}\n---\nkind: PodTemplate\nmetadata: {name: t}\ntemplate: {spec: {containers: [{image: a}]}}\n",
            &["PodTemplate default/t a"],
        ),
    ] {
        assert_eq!(images(text), expected, "{text}");
    }
}

#[test]
fn texts_in_utf_8_and_utf_16_are_decoded_and_others_are_not() {
    let text = "kind: Pöd\n";
    let wide = |read: fn(u16) -> [u8; 2], mark: &str| -> Vec<u8> {
        [mark, text].concat().encode_utf16().flat_map(read).collect()
    };
    for bytes in [
        text.as_bytes().to_vec(),
        ["\u{feff}", text].concat().into_bytes(),
        wide(u16::to_le_bytes, "\u{feff}"),
        wide(u16::to_be_bytes, "\u{feff}"),
        wide(u16::to_le_bytes, ""),
        wide(u16::to_be_bytes, ""),
    ] {
        assert_eq!(decode(bytes.clone()).as_deref(), Some(text), "{bytes:?}");
    }
    for bytes in [&b"kind: \xff\xfe"[..], b"\xff\xfe\x00\xd8"] {
        assert_eq!(decode(bytes.to_vec()), None, "{bytes:?}");
    }
}

#[test]
fn roles_and_policies_reach_the_request() {
    let spec = "initContainers: [{name: side, image: s, restartPolicy: Always, imagePullPolicy: Never}], \
                volumes: [{name: m, image: {reference: v}}]";
    let pod = read(&pod(spec), "").pods.remove(0);
    let found: Vec<_> =
        pod.images.iter().map(|one| (one.role.as_str(), one.image.as_str(), one.policy.as_str())).collect();
    assert_eq!(found, [("sidecar", "s", "Never"), ("container", "a", ""), ("volume", "v", "")]);
}

fn next(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 33).expect("31 bits fit")
}

#[test]
fn no_damage_to_a_manifest_makes_it_panic_or_shows_what_a_secret_holds() {
    let account = "---\nkind: ServiceAccount\nmetadata: {name: default}\nimagePullSecrets: [{name: reg}]\n";
    let secret =
        SECRET.replace("eyJhdXRocyI6e319", "aHVudGVyMmh1bnRlcjI=") + "stringData: {x: &p hunter2hunter2, y: *p}\n";
    let whole = format!("{}---\n{secret}{account}", pod("volumes: [{name: v, image: {reference: m}}]"));
    let pieces =
        ["---\n", "{", "}", "[", "]", "&p ", "*p", ": ", "- ", "\n", "\t", "\"", "'", "|\n", "null", "\u{0}", "é"];
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let (mut read, mut refused) = (0, 0);
    for _ in 0..2000 {
        let mut text = whole.clone();
        for _ in 0..=next(&mut state) % 4 {
            let at = text.floor_char_boundary(next(&mut state) % text.len());
            let end = text.ceil_char_boundary((at + next(&mut state) % 12).min(text.len()));
            text.replace_range(at..end, pieces[next(&mut state) % pieces.len()]);
        }
        match Manifests::read(&[file("p.yaml", &text)], &[]) {
            Ok(manifests) => {
                read += 1;
                let shown = format!("{manifests:?}");
                refused += usize::from(!manifests.failures.is_empty());
                assert!(!shown.contains("hunter2") && !shown.contains("aHVudGVy"), "{text}\n{shown}");
            }
            Err(error) => {
                refused += 1;
                let shown = format!("{error} {error:?}");
                assert!(!shown.contains("hunter2") && !shown.contains("aHVudGVy"), "{text}\n{shown}");
            }
        }
    }
    assert!(read > 200 && refused > 200, "{read} read, {refused} refused: the damage is too little or too much");
}
