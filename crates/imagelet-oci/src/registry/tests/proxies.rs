//! Pulls through proxies: the proxy receives its own credential, the registry receives its own.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use imagelet_core::{
    credentials::Secret,
    error::{ErrorClass, Fault, RuntimeError, Stage},
    image::Reference,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use super::{
    SHOWN, answer, credential,
    fake::{FakeRegistry, Guard},
    platform,
};
use crate::{
    registry::{ProxyConfig, ProxyRule, ProxyRules, Registry, RegistryConfig, RegistryTimeouts, Resolved},
    testing::tls::self_signed,
};

/// A registry that only a proxy finds.
const NAME: &str = "registry.example:5000";
/// `Basic` for `proxyuser` and `s3cretproxy`.
const PROXY_SHOWN: &str = "Basic cHJveHl1c2VyOnMzY3JldHByb3h5";
const PROXY_USER: &str = "proxyuser:s3cretproxy@";

#[derive(Clone)]
enum Kind {
    Http,
    Https(TlsAcceptor),
    Socks,
}

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// A proxy that connects to one address, whatever host is named.
struct FakeProxy {
    address: SocketAddr,
    /// The request line or the SOCKS host, and the credential.
    seen: Arc<Mutex<Vec<(String, String)>>>,
    server: JoinHandle<()>,
}

impl Drop for FakeProxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl FakeProxy {
    /// `answer`: the status line that replaces a tunnel.
    async fn start(kind: Kind, registry: SocketAddr, answer: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<_>>>::default();
        let record = Arc::clone(&seen);
        let server = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let (record, kind) = (Arc::clone(&record), kind.clone());
                tokio::spawn(async move {
                    let mut client: Box<dyn Wire> = match &kind {
                        Kind::Https(acceptor) => Box::new(acceptor.accept(client).await?),
                        Kind::Http | Kind::Socks => Box::new(client),
                    };
                    let (request, head) = match kind {
                        Kind::Http | Kind::Https(_) => http_request(&mut client).await?,
                        Kind::Socks => (socks_request(&mut client).await?, String::new()),
                    };
                    let is_tunnel = request.0.starts_with("CONNECT") || matches!(kind, Kind::Socks);
                    record.lock().unwrap().push(request);
                    if let Some(answer) = answer {
                        return client
                            .write_all(format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n").as_bytes())
                            .await;
                    }
                    let mut server = TcpStream::connect(registry).await?;
                    match kind {
                        Kind::Http | Kind::Https(_) if is_tunnel => {
                            client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
                        }
                        Kind::Http | Kind::Https(_) => server.write_all(head.as_bytes()).await?,
                        Kind::Socks => {}
                    }
                    copy_bidirectional(&mut client, &mut server).await.map(drop)
                });
            }
        });
        Self { address, seen, server }
    }

    fn seen(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

/// The request line, the proxy's credential, and the head to forward.
async fn http_request(client: &mut (impl AsyncRead + Unpin)) -> std::io::Result<((String, String), String)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    let (line, rest) = head.split_once("\r\n").unwrap();
    let is_credential = |line: &&str| line.to_ascii_lowercase().starts_with("proxy-authorization: ");
    let shown = rest.lines().find(is_credential).map_or("", |line| &line["proxy-authorization: ".len()..]);
    let kept: Vec<_> = rest.lines().filter(|line| !is_credential(line)).collect();
    Ok(((line.to_owned(), shown.to_owned()), format!("{line}\r\nconnection: close\r\n{}\r\n", kept.join("\r\n"))))
}

/// A SOCKS5 greeting, user and password if offered, and the host.
async fn socks_request(client: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> std::io::Result<(String, String)> {
    async fn text(client: &mut (impl AsyncRead + Unpin)) -> std::io::Result<String> {
        let mut bytes = vec![0; client.read_u8().await?.into()];
        client.read_exact(&mut bytes).await?;
        Ok(String::from_utf8(bytes).unwrap())
    }
    assert_eq!(client.read_u8().await?, 5);
    let methods = text(client).await?;
    let mut shown = String::new();
    if methods.contains('\u{2}') {
        client.write_all(&[5, 2]).await?;
        assert_eq!(client.read_u8().await?, 1);
        shown = format!("{}:{}", text(client).await?, text(client).await?);
        client.write_all(&[1, 0]).await?;
    } else {
        client.write_all(&[5, 0]).await?;
    }
    let mut request = [0; 4];
    client.read_exact(&mut request).await?;
    assert_eq!(request, [5, 1, 0, 3], "a name, which the proxy looks up");
    let host = format!("{}:{}", text(client).await?, client.read_u16().await?);
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    Ok((host, shown))
}

/// A registry named [`NAME`], over TLS or not, and the folder of its configuration.
async fn registry(encrypted: bool) -> (FakeRegistry, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join(NAME);
    std::fs::create_dir(&own).unwrap();
    let fake = if encrypted {
        let parameters = rcgen::CertificateParams::new(["registry.example".to_owned()]).unwrap();
        let (fake, pem) = FakeRegistry::start_showing(&parameters, None).await;
        std::fs::write(own.join("ca.crt"), pem).unwrap();
        fake
    } else {
        std::fs::write(own.join("hosts.toml"), format!("server = \"http://{NAME}\"\n")).unwrap();
        FakeRegistry::start().await
    };
    fake.put_image("v1", &[]);
    fake.guard(Guard::Basic("user", "hunter2pass"));
    (fake, folder)
}

async fn pull(folder: &tempfile::TempDir, proxy: &str, no_proxy: &str) -> Result<Resolved, RuntimeError> {
    resolve(&client(folder, proxy, no_proxy, ProxyRules::default())).await
}

fn client(folder: &tempfile::TempDir, proxy: &str, no_proxy: &str, rules: ProxyRules) -> Registry {
    let url = Some(Secret::new(proxy));
    let proxies = ProxyConfig { https: url.clone(), http: url, no_proxy: no_proxy.to_owned(), rules };
    let hosts_dirs = vec![folder.path().to_owned()];
    let config = RegistryConfig {
        hosts_dirs,
        proxies,
        timeouts: RegistryTimeouts { retry_budget: std::time::Duration::ZERO, ..RegistryTimeouts::default() },
        ..RegistryConfig::default()
    };
    Registry::new(config)
}

async fn resolve(registry: &Registry) -> Result<Resolved, RuntimeError> {
    let reference: Reference = format!("{NAME}/team/app:v1").parse().unwrap();
    registry.resolve(&reference, Some(&credential("hunter2pass")), &platform()).await
}

#[tokio::test]
async fn a_pull_goes_by_the_proxy_with_the_credential_of_each() {
    for (kind, scheme, encrypted, line, shown) in [
        (Kind::Http, "http", true, "CONNECT registry.example:5000 HTTP/1.1", PROXY_SHOWN),
        (Kind::Http, "http", false, "GET http://registry.example:5000/v2/team/app/manifests/v1 HTTP/1.1", PROXY_SHOWN),
        (Kind::Socks, "socks5", true, NAME, "proxyuser:s3cretproxy"),
        (Kind::Socks, "socks5h", false, NAME, "proxyuser:s3cretproxy"),
    ] {
        let (fake, folder) = registry(encrypted).await;
        let proxy = FakeProxy::start(kind, fake.address, None).await;
        for (user, shown) in [("", ""), (PROXY_USER, shown)] {
            pull(&folder, &format!("{scheme}://{user}{}", proxy.address), "other.example").await.expect(line);
            let seen = proxy.seen();
            assert!(!seen.is_empty(), "{line}");
            assert!(seen.iter().all(|seen| (seen.0.as_str(), seen.1.as_str()) == (line, shown)), "{seen:?}");
            let registry_saw: Vec<_> = fake.seen().into_iter().map(|seen| seen.authorization).collect();
            assert_eq!(registry_saw, [None, Some(SHOWN.to_owned())], "{line}");
        }
    }
}

#[tokio::test]
async fn a_registry_in_no_proxy_is_reached_without_the_proxy() {
    let (fake, folder) = registry(false).await;
    let proxy = FakeProxy::start(Kind::Http, fake.address, None).await;
    let error = pull(&folder, &format!("http://{}", proxy.address), ".example").await.expect_err("no such name");
    assert_eq!(error.fault(), Fault::new(ErrorClass::HostNotFound, Stage::Dns), "{}", error.chain());
    assert!(proxy.seen().is_empty());
}

#[tokio::test]
async fn a_proxy_that_is_down_or_refuses_is_named_without_its_password() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = listener.local_addr().unwrap();
    drop(listener);
    for (encrypted, answer, text, is_outage) in [
        (true, None, "refused", true),
        (false, None, "refused", true),
        (true, Some("407 Proxy Authentication Required"), "407", false),
        (false, Some("407 Proxy Authentication Required"), "407", false),
        (true, Some("502 Bad Gateway"), "502", true),
    ] {
        let (fake, folder) = registry(encrypted).await;
        let proxy = FakeProxy::start(Kind::Http, fake.address, answer).await;
        let address = if answer.is_some() { proxy.address } else { closed };
        let error = pull(&folder, &format!("http://{PROXY_USER}{address}"), "").await.unwrap_err();
        let (chain, hint) = (error.chain(), error.hint().unwrap_or_default());
        assert_eq!(error.fault(), Fault::new(ErrorClass::ProxyFailed, Stage::Proxy), "{chain}");
        assert!(chain.contains(&format!("proxy `http://{address}`")) && chain.contains(text), "{chain}");
        assert!(!chain.contains("s3cretproxy") && !format!("{error:?}").contains("s3cretproxy"), "{chain}");
        assert_eq!(error.is_outage(), is_outage, "{chain}");
        assert_eq!(hint.contains("password"), text == "407", "{hint}");
        assert!(fake.seen().is_empty());
    }
    let (_, folder) = registry(true).await;
    let error = pull(&folder, "gopher://s3cretproxy", "").await.unwrap_err();
    assert_eq!(error.fault(), Fault::new(ErrorClass::ProxyFailed, Stage::Proxy), "{}", error.chain());
    assert!(error.chain().contains("`HTTPS_PROXY`") && !error.chain().contains("s3cretproxy"), "{}", error.chain());
}

#[tokio::test]
async fn an_encrypted_proxy_is_verified_by_the_authorities_of_its_hosts() {
    let parameters = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    for encrypted in [true, false] {
        let (fake, folder) = registry(encrypted).await;
        let (acceptor, pem) = self_signed(&parameters, rustls::ALL_VERSIONS, None);
        let proxy = FakeProxy::start(Kind::Https(acceptor), fake.address, None).await;
        let own = folder.path().join(NAME);
        std::fs::write(own.join("proxy.pem"), pem).unwrap();
        let server = format!("server = \"{}://{NAME}\"\n", if encrypted { "https" } else { "http" });
        let registry_ca = if encrypted { "\"ca.crt\", " } else { "" };
        let trusting = format!("{server}ca = [{registry_ca}\"proxy.pem\"]\n");
        let url = format!("https://{PROXY_USER}{}", proxy.address);
        // The proxy of the environment, then the host's own.
        for (hosts, environment) in
            [(trusting.clone(), url.as_str()), (format!("{trusting}proxy = \"{url}\"\n"), "http://127.0.0.1:1")]
        {
            std::fs::write(own.join("hosts.toml"), &hosts).unwrap();
            pull(&folder, environment, "").await.expect(&hosts);
            let seen = proxy.seen();
            assert!(!seen.is_empty() && seen.iter().all(|(_, shown)| shown == PROXY_SHOWN), "{seen:?}");
            let registry_saw: Vec<_> = fake.seen().into_iter().map(|seen| seen.authorization).collect();
            assert_eq!(registry_saw, [None, Some(SHOWN.to_owned())], "{hosts}");
        }
        for hosts in [format!("{server}ca = [{registry_ca}]\n"), format!("{server}skip_verify = true\n")] {
            std::fs::write(own.join("hosts.toml"), &hosts).unwrap();
            let error = pull(&folder, &url, "").await.expect_err(&hosts);
            assert_eq!(error.fault(), Fault::new(ErrorClass::ProxyFailed, Stage::Proxy), "{}", error.chain());
            assert!(error.chain().contains(&format!("proxy `https://{}`", proxy.address)), "{}", error.chain());
            assert!(!error.chain().contains("s3cretproxy") && proxy.seen().is_empty(), "{}", error.chain());
        }
    }
}

#[tokio::test]
async fn a_hosts_own_proxy_carries_neither_its_redirects_nor_its_token_service() {
    let (fake, folder) = registry(false).await;
    let other = FakeRegistry::start().await;
    other.put_image("v1", &[]);
    let own = FakeProxy::start(Kind::Http, fake.address, None).await;
    let environment = FakeProxy::start(Kind::Http, other.address, None).await;
    let hosts = format!("server = \"http://{NAME}\"\nproxy = \"http://{}\"\n", own.address);
    std::fs::write(folder.path().join(NAME).join("hosts.toml"), hosts).unwrap();
    let registry = client(&folder, &format!("http://{}", environment.address), "", ProxyRules::default());
    let elsewhere = "http://storage.example/v2/team/app/manifests/v1";
    fake.guard(Guard::Open);
    fake.trick("/v1", 1, answer(307, &[("location", elsewhere)], ""));
    let service = "http://registry.example:5001/token";
    let lines = |proxy: &FakeProxy| proxy.seen().into_iter().map(|(line, _)| line).collect::<Vec<_>>();
    for (stranger, own_requests) in [(elsewhere, 1), (service, 2)] {
        resolve(&registry).await.unwrap_or_else(|error| panic!("{stranger}: {}", error.chain()));
        let (by_own, by_environment) = (lines(&own), lines(&environment));
        assert!(by_own.iter().all(|line| line.contains(NAME)) && by_own.len() == own_requests, "{by_own:?}");
        assert!(matches!(&by_environment[..], [line] if line.contains(stranger)), "{by_environment:?}");
        let open = |realm| Guard::Bearer { shown: None, form: None, realm };
        fake.guard(open(Some(service.to_owned())));
        other.guard(open(None));
    }
}

#[tokio::test]
async fn a_registry_outside_redirects_to_no_address_inside_unless_its_configuration_lists_it() {
    let (fake, folder) = registry(false).await;
    let inside = FakeRegistry::start().await;
    inside.put_image("v1", &[]);
    let own = FakeProxy::start(Kind::Http, fake.address, None).await;
    let place = format!("http://{}", inside.address);
    let server = format!("server = \"http://{NAME}\"\nproxy = \"http://{}\"\n", own.address);
    let listed = format!("{server}[host.\"{place}\"]\ncapabilities = [\"push\"]\n");
    fake.guard(Guard::Open);
    let location = format!("{place}/v2/team/app/manifests/v1");
    fake.trick("/v1", 99, answer(307, &[("location", &location)], ""));
    for (hosts, is_followed) in [(server, false), (listed, true)] {
        std::fs::write(folder.path().join(NAME).join("hosts.toml"), hosts).unwrap();
        let found = resolve(&client(&folder, "", "", ProxyRules::default())).await;
        assert_eq!((found.is_ok(), inside.seen().len()), (is_followed, usize::from(is_followed)));
        if let Err(error) = found {
            assert!(error.chain().contains("is inside the network"), "{}", error.chain());
            assert!(error.hint().is_some_and(|hint| hint.contains("capabilities = [\"push\"]")), "{}", error.chain());
        }
    }
}

#[tokio::test]
async fn changed_rules_hold_for_the_next_request_and_no_connection_by_another_proxy_is_reused() {
    for encrypted in [true, false] {
        let (fake, folder) = registry(encrypted).await;
        let (first, second) = (
            FakeProxy::start(Kind::Http, fake.address, None).await,
            FakeProxy::start(Kind::Http, fake.address, None).await,
        );
        let rules = |proxy: &str| ProxyRules::new(vec![ProxyRule::new(&[".example".to_owned()], proxy, None).unwrap()]);
        let shared = rules(&format!("http://{PROXY_USER}{}", first.address));
        let registry = client(&folder, "http://127.0.0.1:1", NAME, shared.clone());
        resolve(&registry).await.expect("by the rule, before the environment");
        assert!(!first.seen().is_empty() && second.seen().is_empty());
        shared.replace(&rules(&format!("http://{}", second.address)));
        resolve(&registry).await.expect("by the other proxy");
        let seen = second.seen();
        assert!(first.seen().is_empty() && !seen.is_empty());
        assert!(seen.iter().all(|(_, shown)| shown.is_empty()), "a proxy gets its own credential: {seen:?}");
        shared.replace(&rules("none"));
        let error = resolve(&registry).await.expect_err("no such name");
        assert_eq!(error.fault(), Fault::new(ErrorClass::HostNotFound, Stage::Dns), "{}", error.chain());
    }
}
