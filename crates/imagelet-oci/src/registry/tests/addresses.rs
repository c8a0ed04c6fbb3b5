//! Connections to registries by address: IPv6, and the time that one host has for them.

use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    failover::{client, fault},
    *,
};
use crate::testing::{FaultRegistry, TestImage};

const LOOPBACK: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Whether this machine has IPv6.
fn has_ipv6() -> bool {
    std::net::TcpListener::bind((LOOPBACK, 0)).is_ok()
}

#[tokio::test]
async fn a_registry_at_an_ipv6_address_serves_a_pull_with_a_token_and_a_redirect() {
    if !has_ipv6() {
        return;
    }
    let (fake, storage) = (FakeRegistry::start_on(LOOPBACK).await, FakeRegistry::start_on(LOOPBACK).await);
    let layer = storage.put_blob(&b"layer"[..]);
    fake.put_image("v1", &[b"layer"]);
    fake.guard(bearer());
    let resolved = pull(&fake, Some(&credential("hunter2pass"))).await.unwrap();
    assert_eq!(resolved.session.reference().domain(), format!("[::1]:{}", fake.address.port()));
    let location = format!("http://{}/blobs/{layer}", storage.address);
    fake.trick(layer.as_str(), 1, answer(307, &[("location", &location)], ""));
    assert_eq!(read(&resolved, &resolved.manifest.layers[0]).await.unwrap(), b"layer");
    let seen = storage.seen();
    assert_eq!(shown(&seen), [None], "the other origin sees no token");
    assert_eq!(seen[0].headers["host"], storage.address.to_string().as_str());
}

#[tokio::test]
async fn a_registry_at_an_ipv6_address_is_verified_by_that_address() {
    if !has_ipv6() {
        return;
    }
    for (of, works) in [(LOOPBACK, true), ("::2".parse().unwrap(), false)] {
        let parameters = rcgen::CertificateParams::new([of.to_string()]).unwrap();
        let (fake, authority) = FakeRegistry::start_showing_on(LOOPBACK, &parameters).await;
        fake.put_image("v1", &[]);
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join(fake.address.to_string());
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("ca.pem"), authority).unwrap();
        let text = format!("server = \"https://{}\"\nca = \"ca.pem\"\n", fake.address);
        std::fs::write(own.join("hosts.toml"), text).unwrap();
        let config = RegistryConfig { hosts_dirs: vec![folder.path().to_owned()], ..RegistryConfig::default() };
        let resolved = Registry::new(config).resolve(&fake.reference("team/app:v1"), None, &platform()).await;
        assert_eq!(resolved.is_ok(), works, "a certificate of {of}");
    }
}

#[tokio::test]
async fn the_dial_timeout_of_a_host_bounds_its_connection_and_no_others() {
    let mirror = FaultRegistry::start(Some(fault("dial-dropped")), &TestImage::of_size(1)).await;
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[]);
    let config = RegistryConfig {
        timeouts: RegistryTimeouts { dial: Duration::from_mins(5), ..RegistryTimeouts::default() },
        ..RegistryConfig::default()
    };
    let (registry, folder) = client(&fake, &[mirror.address().to_owned()], config);
    let file = folder.path().join(fake.address.to_string()).join("hosts.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}dial_timeout = \"1s\"\n")).unwrap();
    let began = Instant::now();
    registry.resolve(&fake.reference("team/app:v1"), None, &platform()).await.unwrap();
    let took = began.elapsed();
    assert!((Duration::from_secs(1)..Duration::from_mins(1)).contains(&took), "{took:?}");
}
