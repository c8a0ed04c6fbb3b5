//! Which certificates of a server are believed, and what is said of the others.

use std::time::Duration;

use imagelet_core::error::{ErrorClass, Fault, Stage};
use rcgen::{BasicConstraints, CertificateParams, CustomExtension, IsCa, date_time_ymd};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
};

use super::{
    SHOWN, credential,
    fake::{FakeRegistry, Guard},
    platform, pull, registry,
};
use crate::{
    registry::{PathStep, Registry, RegistryConfig, RegistryTimeouts, check_path},
    testing::tls::{ClientCertificates, self_signed},
};

/// A self-signed certificate that is also an authority, as `openssl req -x509` makes it.
fn authority_for(name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::new([name.to_owned()]).expect("a name");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters
}

/// Pulls from a registry with its own certificate; `ca` is the configured authority.
async fn ask(parameters: &CertificateParams, ca: impl FnOnce(String) -> String) -> Result<(), (String, String)> {
    let (fake, pem) = FakeRegistry::start_showing(parameters, None).await;
    fake.put_image("v1", &[]);
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join(fake.address.to_string());
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("ca.pem"), ca(pem)).unwrap();
    let text = format!("server = \"https://{}\"\nca = \"ca.pem\"\n", fake.address);
    std::fs::write(own.join("hosts.toml"), text).unwrap();
    let config = RegistryConfig {
        hosts_dirs: vec![folder.path().to_owned()],
        timeouts: RegistryTimeouts { retry_budget: Duration::ZERO, ..RegistryTimeouts::default() },
        ..RegistryConfig::default()
    };
    let registry = Registry::new(config);
    let resolved = registry.resolve(&fake.reference("team/app:v1"), None, &"linux/amd64".parse().unwrap()).await;
    resolved.map(drop).map_err(|error| {
        assert_eq!(error.fault(), Fault::new(ErrorClass::CertificateInvalid, Stage::Tls), "{}", error.chain());
        assert!(!error.is_outage() && fake.seen().is_empty(), "a server that is not believed is asked nothing");
        (error.chain(), error.hint().unwrap_or_default().to_owned())
    })
}

fn another() -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    authority_for("127.0.0.1").self_signed(&key).unwrap().pem()
}

#[tokio::test]
async fn a_server_certificate_that_is_itself_named_as_ca_is_believed() {
    ask(&authority_for("127.0.0.1"), |own| own).await.expect("it is the very one");
    ask(&authority_for("127.0.0.1"), |own| another() + &own).await.expect("among others");
    let plain = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    ask(&plain, |own| own).await.expect("one that is no authority was believed before");
}

#[tokio::test]
async fn a_self_signed_server_certificate_with_the_flags_of_an_authority_is_refused_in_words() {
    let (chain, hint) = ask(&authority_for("127.0.0.1"), |_| another()).await.expect_err("another one was named");
    assert!(chain.contains("that of an authority, as a self-signed one often is"), "{chain}");
    assert!(hint.contains("or the certificate itself, as `ca`"), "{hint}");
    assert!(!chain.contains("Other(") && !chain.contains("CaUsedAsEndEntity"), "{chain}");
}

#[tokio::test]
async fn a_certificate_with_a_critical_extension_that_is_not_known_is_refused_with_the_way_around_it() {
    let mut parameters = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let mut extension = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99_999, 7], vec![5, 0]);
    extension.set_criticality(true);
    parameters.custom_extensions.push(extension);
    let (chain, hint) = ask(&parameters, |_| another()).await.expect_err("it may restrict the certificate");
    assert!(chain.contains("its certificate has a critical extension that this client does not know"), "{chain}");
    assert!(hint.contains("is not critical") && hint.contains("`skip_verify = true`"), "{hint}");
}

#[tokio::test]
async fn a_named_server_certificate_is_refused_out_of_its_time_and_for_other_names() {
    let (chain, hint) = ask(&authority_for("127.0.0.1"), |_| another()).await.expect_err("another one was named");
    assert!(hint.contains("`ca`") && hint.contains("hosts.toml"), "{chain}: {hint}");

    let mut expired = authority_for("127.0.0.1");
    (expired.not_before, expired.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let mut early = authority_for("127.0.0.1");
    early.not_before = date_time_ymd(2090, 1, 1);
    for (parameters, word) in
        [(expired, "expired on Fri, 01 Jan 2021"), (early, "not valid yet, only from Sun, 01 Jan 2090")]
    {
        let (chain, hint) = ask(&parameters, |own| own).await.expect_err("refused");
        assert!(chain.contains(word) && hint.contains("clock") && !hint.contains("`ca`"), "{chain}: {hint}");
    }

    let (chain, hint) = ask(&authority_for("other.example"), |own| own).await.expect_err("refused");
    assert!(
        chain.contains("for another name: `other.example`") && hint.contains("name") && !hint.contains("`ca`"),
        "{chain}: {hint}"
    );
}

/// What an error says of an HTTPS server that answers a handshake with these bytes.
async fn ask_server_of(answer: &'static [u8]) -> (String, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            stream.write_all(answer).await.unwrap();
            // The client ends the connection.
            while stream.read(&mut [0; 4096]).await.is_ok_and(|length| length > 0) {}
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join(address.to_string());
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("hosts.toml"), format!("server = \"https://{address}\"\n")).unwrap();
    let config = RegistryConfig {
        hosts_dirs: vec![folder.path().to_owned()],
        timeouts: RegistryTimeouts { retry_budget: std::time::Duration::ZERO, ..RegistryTimeouts::default() },
        ..RegistryConfig::default()
    };
    let reference = format!("{address}/team/app:v1").parse().unwrap();
    let error = Registry::new(config).resolve(&reference, None, &platform()).await.unwrap_err();
    server.abort();
    assert_eq!(error.fault(), Fault::new(ErrorClass::TlsFailed, Stage::Tls), "{}", error.chain());
    assert!(!error.is_outage() && error.chain().contains(&address.to_string()), "{}", error.chain());
    (error.chain(), error.hint().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_failed_handshake_says_what_the_server_speaks_or_wants() {
    for (answer, problem, correction) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "plain HTTP", "http://"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "neither TLS 1.2 nor 1.3", "enable TLS 1.2"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "requires a client certificate, or a cipher", "client = "),
        (b"\x15\x03\x03\x00\x02\x02\x2a", "alert `BadCertificate`", "client = "),
        (b"\x15\x03\x03\x00\x02\x02\x70", "no certificate for this name", "name that the server serves"),
    ] {
        let (chain, hint) = ask_server_of(answer).await;
        assert!(chain.contains(problem) && hint.contains(correction), "{chain}: {hint}");
    }
}

#[tokio::test]
async fn a_server_that_requires_a_client_certificate_says_so_after_the_handshake_of_tls_1_3() {
    let key = rcgen::KeyPair::generate().unwrap();
    let client = CertificateParams::new(["client".to_owned()]).unwrap().self_signed(&key).unwrap();
    let fake = FakeRegistry::start_requiring(client.der().clone()).await;
    fake.put_image("v1", &[]);
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join(fake.address.to_string());
    std::fs::create_dir(&own).unwrap();
    let text = format!("server = \"https://{}\"\nskip_verify = true\n", fake.address);
    std::fs::write(own.join("hosts.toml"), &text).unwrap();
    let config = RegistryConfig {
        hosts_dirs: vec![folder.path().to_owned()],
        timeouts: RegistryTimeouts { retry_budget: std::time::Duration::ZERO, ..RegistryTimeouts::default() },
        ..RegistryConfig::default()
    };
    let resolve = async || {
        let registry = Registry::new(config.clone());
        registry.resolve(&fake.reference("team/app:v1"), None, &platform()).await
    };
    let error = resolve().await.unwrap_err();
    assert!(error.chain().contains("requires a client certificate"), "{}", error.chain());
    assert!(error.hint().unwrap().contains("client = ") && !error.is_outage(), "{}", error.chain());

    std::fs::write(own.join("client.cert"), client.pem()).unwrap();
    std::fs::write(own.join("client.key"), key.serialize_pem()).unwrap();
    let text = text + "client = [[\"client.cert\", \"client.key\"]]\n";
    std::fs::write(own.join("hosts.toml"), text).unwrap();
    resolve().await.expect("with the certificate");
}

#[tokio::test]
async fn a_loopback_registry_without_configuration_may_speak_tls() {
    let (fake, _) = FakeRegistry::start_encrypted().await;
    fake.put_image("v1", &[]);
    fake.guard(Guard::Bearer {
        shown: Some(SHOWN.to_owned()),
        form: None,
        realm: Some(format!("https://{}/token", fake.address)),
    });
    let shown = credential("hunter2pass");
    let registry = registry();
    for _ in 0..2 {
        registry.resolve(&fake.reference("team/app:v1"), Some(&shown), &platform()).await.expect("over TLS");
    }
    assert!(fake.seen().iter().any(|seen| seen.authorization.as_deref() == Some(SHOWN)));

    // A plain registry stays plain, whatever it answers.
    let plain = FakeRegistry::start().await;
    plain.put_image("v1", &[]);
    pull(&plain, None).await.expect("over plain HTTP");
    plain.trick("/manifests/v1", 9, super::answer(400, &[], "no such thing"));
    let error = pull(&plain, None).await.unwrap_err();
    assert!(error.chain().contains("400"), "{}", error.chain());
}

#[tokio::test]
async fn a_loopback_registry_with_a_configured_authority_is_verified() {
    let (fake, pem) = FakeRegistry::start_encrypted().await;
    fake.put_image("v1", &[]);
    for (ca, trusted) in [(pem, true), (another(), false)] {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join(fake.address.to_string());
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("ca.crt"), ca).unwrap();
        let config = RegistryConfig {
            hosts_dirs: vec![folder.path().to_owned()],
            timeouts: RegistryTimeouts { retry_budget: std::time::Duration::ZERO, ..RegistryTimeouts::default() },
            ..RegistryConfig::default()
        };
        let resolved = Registry::new(config).resolve(&fake.reference("team/app:v1"), None, &platform()).await;
        let class = resolved.map(drop).map_err(|error| error.fault().class);
        assert_eq!(class, if trusted { Ok(()) } else { Err(ErrorClass::CertificateInvalid) });
    }
}

/// A client certificate with its subject and issuer, and its key, in PEM.
fn client_certificate(name: &str) -> (rcgen::Certificate, String) {
    let mut parameters = CertificateParams::new([name.to_owned()]).unwrap();
    parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
    let key = rcgen::KeyPair::generate().unwrap();
    (parameters.self_signed(&key).unwrap(), key.serialize_pem())
}

/// A folder with a `hosts.toml` for an HTTPS server whose certificate is not verified.
fn configured(address: &std::net::SocketAddr, lines: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join(address.to_string());
    std::fs::create_dir(&own).unwrap();
    let text = format!("server = \"https://{address}\"\nskip_verify = true\n{lines}");
    std::fs::write(own.join("hosts.toml"), text).unwrap();
    folder
}

fn client_of(folder: &tempfile::TempDir) -> Registry {
    let hosts_dirs = vec![folder.path().to_owned()];
    Registry::new(RegistryConfig {
        hosts_dirs,
        timeouts: RegistryTimeouts { retry_budget: Duration::ZERO, ..RegistryTimeouts::default() },
        ..RegistryConfig::default()
    })
}

#[tokio::test]
async fn of_several_client_certificates_the_server_gets_one_that_it_may_accept() {
    let (right, right_key) = client_certificate("right.example");
    let (wrong, wrong_key) = client_certificate("wrong.example");
    let fake = FakeRegistry::start_requiring(right.der().clone()).await;
    fake.put_image("v1", &[]);
    for (clients, is_served) in [
        ("[[\"right.cert\", \"right.key\"], [\"wrong.cert\", \"wrong.key\"]]", true),
        ("[\"wrong.pem\", [\"right.cert\", \"right.key\"]]", true),
        ("[\"wrong.pem\", \"right.pem\"]", true),
        ("\"wrong.pem\"", false),
    ] {
        let folder = configured(&fake.address, &format!("client = {clients}\n"));
        let own = folder.path().join(fake.address.to_string());
        for (name, certificate, key) in [("right", &right, &right_key), ("wrong", &wrong, &wrong_key)] {
            std::fs::write(own.join(format!("{name}.cert")), certificate.pem()).unwrap();
            std::fs::write(own.join(format!("{name}.key")), key).unwrap();
            std::fs::write(own.join(format!("{name}.pem")), certificate.pem() + key).unwrap();
        }
        let resolved = client_of(&folder).resolve(&fake.reference("team/app:v1"), None, &platform()).await;
        let fault = resolved.map(drop).map_err(|error| error.fault());
        let refused = Err(Fault::new(ErrorClass::TlsFailed, Stage::Tls));
        assert_eq!(fault, if is_served { Ok(()) } else { refused }, "{clients}");
    }
}

#[tokio::test]
async fn a_server_that_closes_the_connection_for_want_of_a_client_certificate_is_no_lost_connection() {
    let (certificate, key) = client_certificate("client.example");
    for (resets, lines, words) in [
        (true, "", "requires a client certificate"),
        (false, "", "requires a client certificate"),
        (true, "client = \"client.pem\"\n", "rejects the client certificate"),
    ] {
        let parameters = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let clients = ClientCertificates { authority: certificate.der().clone(), is_required: false };
        let (acceptor, _) = self_signed(&parameters, rustls::ALL_VERSIONS, Some(clients));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (count, mut accepted) = mpsc::unbounded_channel();
        let server = tokio::spawn(async move {
            loop {
                let stream = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
                count.send(()).unwrap();
                let (stream, _) = stream.into_inner();
                if resets {
                    stream.set_zero_linger().unwrap();
                }
            }
        });
        let folder = configured(&address, lines);
        std::fs::write(folder.path().join(address.to_string()).join("client.pem"), certificate.pem() + &key).unwrap();
        let reference = format!("{address}/team/app:v1").parse().unwrap();
        let error = client_of(&folder).resolve(&reference, None, &platform()).await.unwrap_err();
        let attempts = std::iter::from_fn(|| accepted.try_recv().ok()).count();
        assert_eq!(attempts, 2, "the cause is likely, not certain");
        let mut failed = Vec::new();
        let mut report = |step: PathStep| failed.extend(step.error.map(|error| (step.name, error.chain())));
        let config = RegistryConfig { hosts_dirs: vec![folder.path().to_owned()], ..RegistryConfig::default() };
        check_path(config, &reference, &[], Some(&platform()), &mut report).await;
        assert!(matches!(&failed[..], [("tls", chain)] if chain.contains(words)), "{failed:?}");
        server.abort();
        assert_eq!(error.fault(), Fault::new(ErrorClass::TlsFailed, Stage::Tls), "{}", error.chain());
        assert!(error.chain().contains(words) && !error.is_outage(), "{}", error.chain());
        assert!(error.hint().is_some_and(|hint| hint.contains("client = ")), "{}", error.chain());
    }
}
