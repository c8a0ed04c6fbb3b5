//! Which certificates of a server are believed, and what is said of the others.

use imagelet_core::runtime::{ErrorClass, Fault, Stage};
use rcgen::{BasicConstraints, CertificateParams, IsCa, date_time_ymd};

use super::fake::FakeRegistry;
use crate::registry::{Registry, RegistryConfig};

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
    let config = RegistryConfig { hosts_dirs: vec![folder.path().to_owned()], retries: 0, ..RegistryConfig::default() };
    let registry = Registry::new(config).unwrap();
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
async fn a_named_server_certificate_is_refused_out_of_its_time_and_for_other_names() {
    let (chain, hint) = ask(&authority_for("127.0.0.1"), |_| another()).await.expect_err("another one was named");
    assert!(hint.contains("`ca`") && hint.contains("hosts.toml"), "{chain}: {hint}");

    let mut expired = authority_for("127.0.0.1");
    (expired.not_before, expired.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let mut early = authority_for("127.0.0.1");
    early.not_before = date_time_ymd(2090, 1, 1);
    for (parameters, word) in [(expired, "expired"), (early, "not valid yet")] {
        let (chain, hint) = ask(&parameters, |own| own).await.expect_err("refused");
        assert!(chain.contains(word) && hint.contains("clock") && !hint.contains("`ca`"), "{chain}: {hint}");
    }

    let (chain, hint) = ask(&authority_for("other.example"), |own| own).await.expect_err("refused");
    assert!(chain.contains("other.example") && hint.contains("name") && !hint.contains("`ca`"), "{chain}: {hint}");
}
