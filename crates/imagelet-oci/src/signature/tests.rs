//! Scopes, names, payloads and keys, each as a table.

use std::{path::Path, process::Command};

use serde_json::json;

use super::{payload, *};

/// A key pair made by openssl.
struct Signer {
    folder: tempfile::TempDir,
    digest: &'static [&'static str],
}

impl Signer {
    fn new(algorithm: &[&str], digest: &'static [&'static str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        openssl(folder.path(), &[&["genpkey", "-out", "key.pem"], algorithm].concat());
        openssl(folder.path(), &["pkey", "-in", "key.pem", "-pubout", "-out", "public.pem"]);
        Self { folder, digest }
    }

    fn public(&self) -> Vec<u8> {
        std::fs::read(self.folder.path().join("public.pem")).expect("a key")
    }

    fn sign(&self, payload: &[u8]) -> Vec<u8> {
        std::fs::write(self.folder.path().join("payload"), payload).expect("written");
        let arguments = ["-sign", "-inkey", "key.pem", "-in", "payload", "-rawin", "-out", "signature"];
        openssl(self.folder.path(), &[&["pkeyutl"], &arguments[..], self.digest].concat());
        std::fs::read(self.folder.path().join("signature")).expect("a signature")
    }
}

fn openssl(folder: &Path, arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).current_dir(folder).output().expect("openssl is installed");
    assert!(output.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn p256() -> Signer {
    Signer::new(&["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"], &["-digest", "sha256"])
}

fn claim(digest: &Digest, name: &str) -> Vec<u8> {
    json!({
        "critical": {
            "identity": {"docker-reference": name},
            "image": {"docker-manifest-digest": digest.as_str()},
            "type": "cosign container image signature",
        },
        "optional": null,
    })
    .to_string()
    .into_bytes()
}

#[test]
fn a_signature_counts_by_its_key_its_digest_and_its_name() {
    let signers = [
        p256(),
        Signer::new(&["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"], &["-digest", "sha256"]),
        Signer::new(&["-algorithm", "ED25519"], &[]),
    ];
    let (subject, reference) = (Digest::of(b"image"), "reg.io/app:v1".parse::<Reference>().expect("a name"));
    let stranger = PublicKeys::parse(&[p256().public()]).expect("a key");
    for signer in signers {
        let keys = PublicKeys::parse(&[p256().public(), signer.public()]).expect("keys");
        let attached = |payload: Vec<u8>| {
            let signature = signer.sign(&payload);
            AttachedSignature { subject: subject.clone(), payload, signature }
        };
        let identity = Identity::SameRepository;
        let good = attached(claim(&subject, "reg.io/app"));
        check(&reference, &keys, identity, std::slice::from_ref(&good)).expect("it is good");
        let refused = |keys: &PublicKeys, signatures: &[AttachedSignature]| {
            check(&reference, keys, identity, signatures).expect_err("refused")
        };
        assert!(refused(&keys, &[]).contains("has none"));
        assert!(refused(&stranger, std::slice::from_ref(&good)).contains("not by an accepted key"));
        let mut changed = good.clone();
        changed.payload.push(b' ');
        assert!(refused(&keys, &[changed]).contains("not by an accepted key"));
        let mut broken = good.clone();
        broken.signature.truncate(10);
        assert!(refused(&keys, std::slice::from_ref(&broken)).contains("not by an accepted key"));
        assert!(refused(&keys, &[attached(claim(&Digest::of(b"other"), "reg.io/app"))]).contains("a signature is of"));
        assert!(refused(&keys, &[attached(claim(&subject, "reg.io/other"))]).contains("a signature is for"));
        check(&reference, &keys, identity, &[broken, good]).expect("one good signature is enough");
    }
    PublicKeys::parse(&[b"no key".to_vec()]).expect_err("no key");
    let p521 = Signer::new(&["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-521"], &[]);
    PublicKeys::parse(&[p521.public()]).expect_err("of another kind");
}

#[test]
fn a_name_is_accepted_as_the_policy_says() {
    use Identity::{Exact, RepositoryOfDigestOrExact, SameRepository};
    let digest = Digest::of(b"image");
    let (tag, by_digest) = ("reg.io/app:v1", format!("reg.io/app@{digest}"));
    for (requested, signed, accepted) in [
        (tag, "reg.io/app:v1", &[Exact, RepositoryOfDigestOrExact, SameRepository][..]),
        (tag, "reg.io/app:v2", &[SameRepository]),
        (tag, "reg.io/app", &[SameRepository]),
        ("reg.io/app:latest", "reg.io/app", &[SameRepository]),
        (tag, "reg.io/application:v1", &[]),
        (tag, "other.io/app:v1", &[]),
        (tag, "", &[]),
        (&by_digest, &by_digest, &[Exact, RepositoryOfDigestOrExact, SameRepository]),
        (&by_digest, "reg.io/app:v1", &[RepositoryOfDigestOrExact, SameRepository]),
        (&by_digest, "reg.io/app", &[RepositoryOfDigestOrExact, SameRepository]),
        ("docker.io/library/nginx:1", "nginx:1", &[Exact, RepositoryOfDigestOrExact, SameRepository]),
    ] {
        let requested: Reference = requested.parse().expect("a name");
        for identity in [Exact, RepositoryOfDigestOrExact, SameRepository] {
            let found = identity.check(&requested, signed).is_ok();
            assert_eq!(found, accepted.contains(&identity), "{requested} {signed} {identity:?}");
        }
    }
}

#[test]
fn a_signed_text_with_unknown_fields_is_refused() {
    let digest = Digest::of(b"image");
    payload::parse(&claim(&digest, "a")).expect("it is good");
    let good: serde_json::Value = serde_json::from_slice(&claim(&digest, "a")).expect("JSON");
    for (pointer, value) in [
        ("/critical/type", json!("atomic container signature")),
        ("/critical/image/docker-manifest-digest", json!("sha256:x")),
        ("/critical/image/more", json!(1)),
        ("/critical/more", json!(1)),
        ("/more", json!(1)),
    ] {
        let mut changed = good.clone();
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        changed.pointer_mut(parent).expect("an object")[name] = value;
        payload::parse(changed.to_string().as_bytes()).expect_err(pointer);
    }
}

#[test]
fn the_most_specific_scope_counts() {
    let scopes = [
        "reg.example.com/team/app:v1",
        "reg.example.com/team/app",
        "reg.example.com/team",
        "reg.example.com",
        "*.example.com",
        "*.com",
        "",
        "127.0.0.1:5000",
    ];
    let docker: serde_json::Map<_, _> =
        scopes.iter().map(|scope| ((*scope).to_owned(), json!([{"type": "reject"}]))).collect();
    for (name, scope) in [
        ("reg.example.com/team/app:v1", "reg.example.com/team/app:v1"),
        ("reg.example.com/team/app:v2", "reg.example.com/team/app"),
        ("reg.example.com/team/application:v1", "reg.example.com/team"),
        ("reg.example.com/teams/app:v1", "reg.example.com"),
        ("other.example.com/app:v1", "*.example.com"),
        ("deep.other.example.com/app:v1", "*.example.com"),
        ("example.com/app:v1", "*.com"),
        ("127.0.0.1:5000/app:v1", "127.0.0.1:5000"),
        ("localhost:5000/app:v1", ""),
    ] {
        let policy = json!({"default": [{"type": "insecureAcceptAnything"}], "transports": {"docker": docker}});
        let policy = SignaturePolicy::parse(policy.to_string().as_bytes()).expect("a policy");
        let found = policy.rule(&name.parse().expect("a name"));
        assert_eq!(found.place, format!("transports.docker[\"{scope}\"]"), "{name}");
    }
    let policy = SignaturePolicy::parse(br#"{"default":[{"type":"reject"}],"transports":{"dir":{"":[{"type":"x"}]}}}"#);
    assert_eq!(policy.expect("a policy").rule(&"a:v1".parse().expect("a name")).place, "default");
}

#[test]
fn an_archive_has_the_scope_of_its_transport_and_path() {
    use policy::Transport::{DockerArchive, Oci, OciArchive};
    let accept = || json!([{"type": "insecureAcceptAnything"}]);
    let policy = json!({"default": [{"type": "reject"}], "transports": {
        "docker": {"": accept()},
        "docker-archive": {"/media": accept(), "": accept()},
        "oci": {"/media/oci": accept()},
        "oci-archive": {"/media": accept(), "/media/a.tar": accept(), "/": accept()},
    }});
    let policy = SignaturePolicy::parse(policy.to_string().as_bytes()).expect("a policy");
    for (transport, path, place) in [
        (OciArchive, "/media/a.tar", "transports[\"oci-archive\"][\"/media/a.tar\"]"),
        (OciArchive, "/media/deep/b.tar", "transports[\"oci-archive\"][\"/media\"]"),
        (OciArchive, "/mediation/b.tar", "default"),
        (Oci, "/media/oci/app", "transports.oci[\"/media/oci\"]"),
        (Oci, "/media", "default"),
        (DockerArchive, "/media/a.tar", "transports[\"docker-archive\"][\"\"]"),
    ] {
        assert_eq!(policy.archive_rule(transport, Path::new(path)).place, place, "{transport:?} {path}");
    }
}

#[test]
fn a_policy_that_is_not_understood_is_refused_and_what_is_not_supported_accepts_nothing() {
    let read = |requirement: serde_json::Value| {
        let policy = json!({"default": [requirement]}).to_string();
        SignaturePolicy::parse(policy.as_bytes())
            .map(|policy| policy.rule(&"a:v1".parse().expect("a name")).requirements[0].clone())
    };
    for (requirement, word) in [
        (json!({"type": "signedBy", "keyType": "GPGKeys", "keyPath": "/k"}), "signedBy"),
        (json!({"type": "sigstoreSigned", "fulcio": {"caPath": "/ca"}}), "fulcio"),
        (json!({"type": "sigstoreSigned", "keyPath": "/k", "rekorPublicKeyPath": "/r"}), "rekorPublicKeyPath"),
        (
            json!({"type": "sigstoreSigned", "keyPath": "/k", "signedIdentity": {"type": "remapIdentity", "prefix": "a", "signedPrefix": "b"}}),
            "remapIdentity",
        ),
    ] {
        let found = read(requirement.clone()).expect("it is known");
        assert!(matches!(&found, Requirement::Unsupported(why) if why.contains(word)), "{requirement}: {found:?}");
    }
    for requirement in [
        json!({"type": "sigstoreSigned", "keyPath": "/k", "keyDatas": null, "fulcio": null, "rekorPublicKeyDatas": null}),
        json!({"type": "sigstoreSigned", "keyPath": "/k", "signedIdentity": {"type": "matchExact", "prefix": null}}),
    ] {
        let found = read(requirement.clone());
        assert!(matches!(found, Ok(Requirement::Sigstore { .. })), "{requirement}: {found:?}");
    }
    for requirement in [
        json!({"type": "accept"}),
        json!({"type": "reject", "more": null}),
        json!({"type": "reject", "keyPath": "/k"}),
        json!({"type": "insecureAcceptAnything", "more": 1}),
        json!({"type": "sigstoreSigned"}),
        json!({"type": "sigstoreSigned", "keyPath": "/k", "keyData": "a2V5"}),
        json!({"type": "sigstoreSigned", "keyPath": "relative"}),
        json!({"type": "sigstoreSigned", "keyPaths": []}),
        json!({"type": "sigstoreSigned", "keyData": "not base64"}),
        json!({"type": "sigstoreSigned", "keyPath": "/k", "signedIdentity": {"type": "any"}}),
    ] {
        read(requirement.clone()).expect_err(&requirement.to_string());
    }
    for text in [
        "{}",
        "[]",
        r#"{"default":[]}"#,
        r#"{"default":[{"type":"reject"}],"more":1}"#,
        r#"{"default":[{"type":"reject"}],"transports":[{"":[{"type":"insecureAcceptAnything"}]}]}"#,
        r#"{"default":[{"type":"reject"}],"transports":[{},{},{},{}]}"#,
        r#"{"default":[{"type":"reject"}],"transports":[]}"#,
        r#"{"default":[{"type":"reject"}],"default":[{"type":"insecureAcceptAnything"}]}"#,
        r#"{"default":[{"type":"reject"}],"transports":{"docker":{"a":[{"type":"reject"}],"a":[{"type":"insecureAcceptAnything"}]}}}"#,
    ] {
        SignaturePolicy::parse(text.as_bytes()).expect_err(text);
    }
}

#[test]
fn a_refused_policy_is_quoted_in_short_and_on_one_line() {
    let long = "x".repeat(10_000);
    let twice = format!(r#"{{"default":[{{"type":"reject"}}],"transports":{{"docker":{{"{long}":[],"{long}":[]}}}}}}"#);
    assert!(SignaturePolicy::parse(twice.as_bytes()).expect_err(&twice).contains("a key occurs twice: \"xxx"));
    let many: Vec<_> = (0..=10_000).map(|scope| format!(r#""{scope}":[{{"type":"reject"}}]"#)).collect();
    let many = format!(r#"{{"default":[{{"type":"reject"}}],"transports":{{"oci":{{{}}}}}}}"#, many.join(","));
    assert_eq!(
        SignaturePolicy::parse(many.as_bytes()).expect_err("too many"),
        "transports.oci has more than 10000 scopes"
    );
    for text in [
        r#"{"default":[],"\u001b[2J\n":1}"#.to_owned(),
        format!(r#"{{"default":[{{"type":"sigstoreSigned","keyPath":"\u001b[2J{long}"}}]}}"#),
    ] {
        let why = SignaturePolicy::parse(text.as_bytes()).expect_err(&text);
        assert!(why.len() < 1000 && why.contains("[2J") && !why.contains(char::is_control), "{why:?}");
    }
}
