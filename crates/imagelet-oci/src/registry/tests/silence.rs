//! Registries, token services and stores behind redirects that stop sending.

use std::{net::SocketAddr, time::Duration};

use imagelet_core::{
    credentials::{Credential, Secret},
    error::{ErrorClass, Fault, Party, RuntimeError, RuntimeErrorKind, Stage},
    image::Platform,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::Instant,
};

use super::fake::{FakeRegistry, Guard, Trick};
use crate::registry::{Registry, RegistryConfig, RegistryTimeouts, Resolved};

const CONNECTION: Duration = Duration::from_secs(2);
const PULL: Duration = Duration::from_secs(5);
/// A slower pull hangs.
const HANGS: Duration = Duration::from_secs(45);

fn registry(retry_budget: Duration, silence_max: Option<Duration>) -> Registry {
    let config = RegistryConfig {
        timeouts: RegistryTimeouts {
            header: CONNECTION,
            progress: CONNECTION,
            silence_max,
            retry_budget,
            ..RegistryTimeouts::default()
        },
        ..RegistryConfig::default()
    };
    Registry::new(config)
}

async fn resolve(registry: &Registry, name: &str) -> Result<Resolved, RuntimeError> {
    let platform: Platform = "linux/amd64".parse().unwrap();
    let credential = Credential::basic("", "user", Secret::new("hunter2pass"));
    let reference = name.parse().unwrap();
    let resolved = registry.resolve(&reference, Some(&credential), &platform);
    tokio::time::timeout(HANGS, resolved).await.expect("the pull hangs")
}

async fn read(resolved: &Resolved) -> Result<usize, RuntimeError> {
    let read = async {
        let mut stream = resolved.session.open_blob(&resolved.manifest.layers[0], 0).await?;
        let mut length = 0;
        while let Some(chunk) = stream.next().await? {
            length += chunk.len();
        }
        Ok(length)
    };
    tokio::time::timeout(HANGS, read).await.expect("the pull hangs")
}

/// Accepts connections and never answers.
async fn silent() -> SocketAddr {
    speaking(b"", None).await
}

/// Answers with a head, then one byte per interval.
async fn speaking(head: &'static [u8], every: Option<Duration>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                let mut request = [0; 1024];
                if reader.read(&mut request).await.is_err() {
                    return;
                }
                let speak = async {
                    writer.write_all(head).await.ok();
                    while let Some(every) = every {
                        tokio::time::sleep(every).await;
                        if writer.write_all(b" ").await.is_err() {
                            return;
                        }
                    }
                    std::future::pending::<()>().await;
                };
                let listen = async { while reader.read(&mut [0; 1024]).await.is_ok_and(|length| length > 0) {} };
                tokio::select! {
                    () = speak => {}
                    () = listen => {}
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn a_registry_that_never_answers_ends_the_pull_by_its_deadline_and_is_asked_more_than_once() {
    let name = format!("{}/team/app:v1", silent().await);
    let began = Instant::now();
    let error = resolve(&registry(HANGS, Some(PULL)), &name).await.unwrap_err();
    assert!(began.elapsed() >= PULL, "{:?}", began.elapsed());
    assert_eq!(error.fault(), Fault::new(ErrorClass::TimedOut, Stage::Manifest), "{}", error.chain());
    assert!(error.is_outage() && error.kind() == RuntimeErrorKind::RegistryUnavailable);
    assert!(error.chain().contains("no connection of the pull brought a byte for 5 s"), "{}", error.chain());
    // Without a deadline the retries end it.
    let error = resolve(&registry(CONNECTION, None), &name).await.unwrap_err();
    assert!(error.chain().contains("the connection brought no byte for 2 s"), "{}", error.chain());
    assert_eq!(error.fault(), Fault::new(ErrorClass::TimedOut, Stage::Manifest));
}

#[tokio::test]
async fn a_token_service_that_never_answers_or_never_ends_does_not_hang_the_pull() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n";
    for (what, service) in [
        ("never answers", silent().await),
        ("ends in the head", speaking(b"HTTP/1.1 200 OK\r\n", None).await),
        ("never ends", speaking(head, Some(Duration::from_millis(300))).await),
    ] {
        let fake = FakeRegistry::start().await;
        fake.put_image("v1", &[b"layer"]);
        fake.guard(Guard::Bearer { shown: None, form: None, realm: Some(format!("http://{service}/token")) });
        let name = format!("{}/team/app:v1", fake.address);
        let error = resolve(&registry(CONNECTION, Some(PULL)), &name).await.unwrap_err();
        let fault = Fault { party: Party::TokenService, ..Fault::new(ErrorClass::TimedOut, Stage::Token) };
        assert_eq!(error.fault(), fault, "{what}: {}", error.chain());
        let is_late = error.chain().contains("did not end its answer within 2 s");
        assert!(is_late || what != "never ends", "{}", error.chain());
    }
}

#[tokio::test]
async fn a_store_behind_a_redirect_that_never_answers_ends_the_pull() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[b"layer"]);
    let registry = registry(HANGS, Some(PULL));
    let resolved = resolve(&registry, &format!("{}/team/app:v1", fake.address)).await.unwrap();
    let elsewhere = ("location", format!("http://{}/blob", silent().await));
    let digest = resolved.manifest.layers[0].digest.as_str();
    fake.trick(digest, 1, Trick::Answer(307, vec![elsewhere.clone()], "".into()));
    assert_eq!(read(&resolved).await.unwrap(), 5, "the next answer leads elsewhere");
    fake.trick(digest, 1, Trick::StallAfter(2));
    assert_eq!(read(&resolved).await.unwrap(), 5, "one connection stalls, another one does not");
    let registry = self::registry(Duration::ZERO, Some(PULL));
    fake.trick(digest, 9, Trick::Answer(307, vec![elsewhere], "".into()));
    let resolved = resolve(&registry, &format!("{}/team/app:v1", fake.address)).await.unwrap();
    let error = read(&resolved).await.unwrap_err();
    let fault = Fault { party: Party::RedirectTarget, ..Fault::new(ErrorClass::TimedOut, Stage::Blob) };
    assert_eq!(error.fault(), fault, "{}", error.chain());
}

#[tokio::test]
async fn a_mirror_that_falls_silent_in_the_middle_is_passed_over() {
    let (fake, mirror) = (FakeRegistry::start().await, FakeRegistry::start().await);
    let layer = vec![7; 50_000];
    for registry in [&fake, &mirror] {
        registry.put_image("v1", &[&layer]);
    }
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join(fake.address.to_string());
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("hosts.toml"), format!("[host.\"http://{}\"]\n", mirror.address)).unwrap();
    let config = RegistryConfig {
        hosts_dirs: vec![directory.path().to_owned()],
        timeouts: RegistryTimeouts { header: CONNECTION, progress: CONNECTION, ..RegistryTimeouts::default() },
        ..RegistryConfig::default()
    };
    let registry = Registry::new(config);
    let resolved = resolve(&registry, &format!("{}/team/app:v1", fake.address)).await.unwrap();
    mirror.trick(resolved.manifest.layers[0].digest.as_str(), 99, Trick::StallAfter(10_000));
    fake.seen();
    assert_eq!(read(&resolved).await.unwrap(), layer.len());
    let ranges: Vec<_> = fake.seen().into_iter().map(|seen| seen.range).collect();
    assert_eq!(ranges, [Some("bytes=10000-".to_owned())], "the registry sends the rest");
}
