//! A kubelet's file and its drop-ins, read as the kubelet reads them.

use super::*;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// The value of a key after a kubelet's file, if one is given, and drop-ins by name.
fn merged(file: Option<&str>, drop_ins: &[(&str, &str)], key: &str) -> Result<(Value, String), ConfigError> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sources = defaults();
    if let Some(text) = file {
        let path = folder.path().join("kubelet.yaml");
        std::fs::write(&path, text).expect("a file");
        sources.add_kubelet_file(&path)?;
    }
    if !drop_ins.is_empty() {
        let place = folder.path().join("kubelet.conf.d");
        for (name, text) in drop_ins {
            let path = place.join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        sources.add_kubelet_folder(&place)?;
    }
    let shown = sources.effective()?.into_iter().find(|one| one.key == key).expect("a key that is shown");
    sources.settings()?;
    let source = shown.source.to_string();
    Ok((shown.value, source.rsplit('/').next().unwrap_or_default().to_owned()))
}

#[test]
fn a_file_that_a_kubelet_starts_with_starts_imagelet() {
    let text = |more: &str| format!("{HEAD}{more}");
    for (what, file, key, value) in [
        ("a key twice: the last", text("registryBurst: 1\nregistryBurst: 2\n"), "registryBurst", json!(2)),
        ("evictions", text("evictionHard: {imagefs.available: 5%, x: 7%}\nmaxPods: 9\n"), "maxPods", json!(9)),
        ("a key of no image twice", text("clusterDNS: [a]\nclusterDNS: [b]\nmaxPods: 9\n"), "maxPods", json!(9)),
        ("a marker behind it", text("registryBurst: 7\n---\n"), "registryBurst", json!(7)),
        ("a marker without a line end", text("registryBurst: 7\n---"), "registryBurst", json!(7)),
        ("an end and a remark", text("registryBurst: 7\n...\n# end\n"), "registryBurst", json!(7)),
        ("a marker before it", format!("---\n{HEAD}registryBurst: 7\n"), "registryBurst", json!(7)),
        ("a second document", text("registryBurst: 7\n---\nregistryBurst: 8\n"), "registryBurst", json!(7)),
        ("one of another kind", text("registryBurst: 7\n---\nkind: Pod\n"), "registryBurst", json!(7)),
        ("a second one that is no YAML", text("registryBurst: 7\n---\n{[\t"), "registryBurst", json!(7)),
        (
            "a key of a newer version",
            text("tracing: {samplingRatePerMillion: 5, newer: {a: b}}\n"),
            "maxPods",
            json!(110),
        ),
        ("a gate of a newer version", text("featureGates: {Newer: true}\n"), "maxPods", json!(110)),
        ("null maps", text("featureGates:\ntracing: ~\n"), "maxPods", json!(110)),
        ("a null list", text("preloadedImagesVerificationAllowlist: null\n"), "maxPods", json!(110)),
        ("a null number", text("maxPods: null\nmaxParallelImagePulls: null\n"), "maxPods", json!(110)),
        ("yes and no", text("serializeImagePulls: no\n"), "serializeImagePulls", json!(false)),
        ("a byte order mark", format!("\u{feff}{HEAD}registryBurst: 7\n---\n"), "registryBurst", json!(7)),
        ("line ends of Windows", text("registryBurst: 7\n---\n").replace('\n', "\r\n"), "registryBurst", json!(7)),
        ("JSON", r#"{"kind": "KubeletConfiguration", "registryBurst": 7}"#.into(), "registryBurst", json!(7)),
        ("a tab behind a value", text("registryBurst: 7\t# seven\n"), "registryBurst", json!(7)),
        (
            "a later version",
            "apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration\nmaxPods: 9\n".into(),
            "maxPods",
            json!(9),
        ),
    ] {
        let (found, _) = merged(Some(&file), &[], key).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(found, value, "{what}");
    }
}

#[test]
fn the_thresholds_of_a_kubelets_drop_ins_are_those_of_the_node() {
    let main = format!(
        "{HEAD}imageGCHighThresholdPercent: 70\nimageGCLowThresholdPercent: 60\nmaxPods: 50\n\
         evictionHard: {{imagefs.available: 5%}}\n\
         preloadedImagesVerificationAllowlist: [a, b]\nimagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n\
         tracing: {{endpoint: 'localhost:1', samplingRatePerMillion: 7}}\n"
    );
    let main = Some(main.as_str());
    let text = |more: &str| format!("{HEAD}{more}");
    let high = |percent: u8| text(&format!("imageGCHighThresholdPercent: {percent}\n"));
    let (low, high_75, high_80) = (text("imageGCLowThresholdPercent: 50\n"), high(75), high(80));
    let list = text("preloadedImagesVerificationAllowlist: [c]\n");
    let (pods_0, pods_null) = (text("maxPods: 0\n"), text("maxPods: null\n"));
    let rate = text("tracing: {samplingRatePerMillion: 9}\n");
    let key = "imageGCHighThresholdPercent";
    for (what, file, drop_ins, key, value, source) in [
        ("one", main, &[("10-gc.conf", high_75.as_str())][..], key, json!(75), "10-gc.conf:3"),
        ("two", main, &[("10-gc.conf", &high_75), ("20-gc.conf", &high_80)], key, json!(80), "20-gc.conf:3"),
        ("by name and not by number", main, &[("9.conf", &high_75), ("10.conf", &high_80)], key, json!(75), "9.conf:3"),
        ("one about another key", main, &[("10-gc.conf", &low)], key, json!(70), "kubelet.yaml:3"),
        (
            "files of other names",
            main,
            &[("a.yaml", &high_75), ("b.conf.bak", "["), ("c.conf~", "[")],
            key,
            json!(70),
            "kubelet.yaml:3",
        ),
        ("a file in a folder in it", main, &[("10/a.conf", &high_75)], key, json!(75), "a.conf:3"),
        (
            "without a file",
            None,
            &[("00-rke2.conf", &high_75), ("99-user.conf", &high(95))],
            key,
            json!(95),
            "99-user.conf:3",
        ),
        ("a list", main, &[("a.conf", &list)], "preloadedImagesVerificationAllowlist", json!(["c"]), "a.conf:3"),
        ("a null", main, &[("a.conf", &pods_null)], "maxPods", json!(110), "default"),
        ("a zero that is the default", main, &[("a.conf", &pods_0)], "maxPods", json!(110), "default"),
        ("a section", main, &[("a.conf", &rate)], "tracing.endpoint", json!("localhost:1"), "kubelet.yaml:9"),
        (
            "a repeated key",
            main,
            &[("a.conf", &format!("{high_75}imageGCHighThresholdPercent: 76\n---\n"))],
            key,
            json!(76),
            "a.conf:4",
        ),
    ] {
        let (found, place) = merged(file, drop_ins, key).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!((found, place.as_str()), (value, source), "{what}");
    }
}

#[test]
fn a_drop_in_that_a_kubelet_does_not_start_with_is_refused_by_its_name() {
    for (name, text, words) in [
        ("10.conf", "maxPods: 5\n".to_owned(), "10.conf: this is not a `KubeletConfiguration`"),
        ("10.conf", String::new(), "10.conf: the file is empty"),
        ("10.conf", format!("{HEAD}maxPods: many\n"), "10.conf:3: maxPods: "),
        ("10.conf", format!("{HEAD}imageGCHighThresholdPercent: 5\n"), "10.conf:3: invalid configuration: "),
        ("a/b/c/d/e/f/g/h/i/j.conf", HEAD.to_owned(), "could not read the configuration"),
    ] {
        let error = merged(None, &[(name, &text)], "maxPods").expect_err(&text).to_string();
        assert!(error.contains(words), "{error}");
    }
    let error = defaults().add_kubelet_folder(Path::new("/nonexistent/kubelet.conf.d")).expect_err("no folder");
    assert!(error.to_string().contains("/nonexistent/kubelet.conf.d"), "{error}");
    // Another user could add a drop-in.
    let folder = tempfile::tempdir().expect("a folder");
    set_mode(folder.path(), 0o777);
    assert!(defaults().add_kubelet_folder(folder.path()).is_err());
}

#[test]
fn a_minimum_age_of_zero_is_none_in_our_own_file_and_the_default_in_a_kubelets() {
    let of_ours = |text: &str| given(text).settings().expect("it holds").collection.policy.age_min.as_secs();
    for text in ["imageMinimumGCAge: 0s\n", "imageMinimumGCAge: 0\n", "imageMinimumGCAge: '0'\n"] {
        assert_eq!(of_ours(text), 0, "{text}");
    }
    for text in ["imageMinimumGCAge: null\n", "socket: /s\n"] {
        assert_eq!(of_ours(text), 120, "{text}");
    }
    let kubelet = given_kubelet(&json!({"imageMinimumGCAge": "0s"}));
    assert_eq!(kubelet.settings().expect("it holds").collection.policy.age_min.as_secs(), 120);
}
