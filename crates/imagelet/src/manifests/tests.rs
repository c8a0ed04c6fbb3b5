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
    assert!(found.notes[1].contains("no pod names the secret `ops/reg` in `s.yaml`"), "{:?}", found.notes);
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
    assert_eq!(
        complaint(&pod("").replace("image: a", "image: {hunter2: 1}"), ""),
        "could not use the manifest `p.yaml`: `spec.containers[0].image` of the manifest in line 2 is not a string"
    );
    let broken = complaint(&pod(""), "kind: Secret\ntype: Opaque\ndata: [hunter2\n");
    assert!(broken.starts_with("could not use the manifest `s.yaml`: ") && !broken.contains("hunter2"), "{broken}");
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
