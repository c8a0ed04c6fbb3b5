//! Pulls by a `registries.yaml`: what each endpoint is asked, and which credential it sees.

use super::{
    SHOWN,
    fake::{FakeRegistry, Guard},
    *,
};

/// `Basic` for `puller` and `mirrorpass`.
const MIRROR_SHOWN: &str = "Basic cHVsbGVyOm1pcnJvcnBhc3M=";

/// A client that knows its registries by a file.
fn client(folder: &tempfile::TempDir, text: &str) -> Registry {
    let file = folder.path().join("registries.yaml");
    std::fs::write(&file, text).unwrap();
    Registry::new(RegistryConfig {
        hosts_dirs: vec![file],
        timeouts: RegistryTimeouts { retry_budget: Duration::ZERO, ..RegistryTimeouts::default() },
        ..RegistryConfig::default()
    })
}

#[tokio::test]
async fn an_endpoint_sees_its_own_credential_and_the_registry_its_own() {
    let (origin, mirror) = (FakeRegistry::start().await, FakeRegistry::start().await);
    for fake in [&origin, &mirror] {
        fake.put_image("v1", &[b"layer"]);
    }
    mirror.guard(Guard::Basic("puller", "mirrorpass"));
    origin.guard(Guard::Basic("user", "hunter2pass"));
    let folder = tempfile::tempdir().unwrap();
    let (origin_place, mirror_place) = (origin.address, mirror.address);
    let text = format!(
        "mirrors:\n  {origin_place}:\n    endpoint: [\"http://{mirror_place}\"]\n    rewrite: {{\"^team/(.*)\": \"copies/$1\"}}\n\
         configs:\n  {mirror_place}: {{auth: {{username: puller, password: mirrorpass}}}}\n"
    );
    let own = format!("  {origin_place}: {{auth: {{auth: dXNlcjpodW50ZXIycGFzcw==}}}}\n");
    let registry = client(&folder, &text);
    let given = credential("hunter2pass");
    let reference = origin.reference("team/app:v1");
    let resolved = registry.resolve(&reference, Some(&given), &platform()).await.unwrap();
    assert_eq!(read(&resolved, &resolved.manifest.layers[0]).await.unwrap(), b"layer");
    let seen = mirror.seen();
    assert_eq!(shown(&seen), [None, Some(MIRROR_SHOWN), Some(MIRROR_SHOWN)]);
    assert!(seen.iter().all(|seen| seen.path.starts_with("/v2/copies/app/")), "{seen:?}");
    assert!(seen.iter().all(|seen| seen.query == format!("ns={origin_place}")), "{seen:?}");
    assert!(origin.seen().is_empty());

    // The mirror refuses: the registry is last, by its own name, with the credential of the pull or of the file.
    mirror.guard(Guard::Never);
    let registry = client(&folder, &(text + &own));
    for credential in [Some(&given), None] {
        registry.resolve(&reference, credential, &platform()).await.unwrap();
        assert_eq!(shown(&mirror.seen()), [None, Some(MIRROR_SHOWN)]);
        let seen = origin.seen();
        assert_eq!(shown(&seen), [None, Some(SHOWN)]);
        assert!(seen.iter().all(|seen| seen.path.starts_with("/v2/team/app/") && seen.query.is_empty()), "{seen:?}");
    }
    // Neither is named in an error.
    origin.guard(Guard::Never);
    let error = registry.resolve(&reference, None, &platform()).await.unwrap_err();
    for secret in ["mirrorpass", "hunter2pass", &MIRROR_SHOWN[6..], &SHOWN[6..]] {
        assert!(!error.chain().contains(secret) && !format!("{error:?}").contains(secret), "{}", error.chain());
    }
}

#[tokio::test]
async fn tls_settings_belong_to_their_host() {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["client".to_owned()]).unwrap().self_signed(&key).unwrap();
    let (fake, pem) = FakeRegistry::start_asking_for(Some(certificate.der().clone())).await;
    fake.put_image("v1", &[]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ca.pem"), pem).unwrap();
    std::fs::write(folder.path().join("client.pem"), certificate.pem()).unwrap();
    std::fs::write(folder.path().join("client.key"), key.serialize_pem()).unwrap();
    let place = fake.address;
    let (ca, client_files) = ("ca_file: ca.pem", "cert_file: client.pem, key_file: client.key");
    for (tls, expected) in [
        ("", None),
        ("insecure_skip_verify: true", Some(0)),
        (ca, Some(0)),
        (&format!("{ca}, {client_files}"), Some(1)),
        (client_files, None),
    ] {
        let text = format!(
            "mirrors: {{registry.example: {{endpoint: [\"https://{place}\"]}}}}\n\
             configs: {{{place}: {{tls: {{{tls}}}}}, \"*\": {{tls: {{insecure_skip_verify: true}}}}}}\n"
        );
        let before = fake.certificates().len();
        let reference = "registry.example/team/app:v1".parse().unwrap();
        let resolved = client(&folder, &text).resolve(&reference, None, &platform()).await;
        match resolved {
            Ok(_) => assert_eq!(Some(fake.certificates().len() - before), expected, "{tls}"),
            Err(error) => {
                assert!(expected.is_none() && error.chain().contains("unknown authority"), "{tls}: {}", error.chain());
            }
        }
    }
}

#[tokio::test]
async fn a_file_that_others_may_change_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[]);
    let folder = tempfile::tempdir().unwrap();
    let registry = client(&folder, "mirrors:\n");
    let file = folder.path().join("registries.yaml");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o646)).unwrap();
    let error = registry.resolve(&fake.reference("team/app:v1"), None, &platform()).await.unwrap_err();
    assert!(error.chain().contains("every user may write to"), "{}", error.chain());
    assert!(fake.seen().is_empty());
}
