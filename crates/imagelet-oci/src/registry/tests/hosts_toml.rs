//! What `hosts.toml` says of a host, as the host sees it.

use super::*;

/// A client with this text as `hosts.toml` of a folder.
fn configured(folder: &str, text: &str) -> (Registry, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join(folder);
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("hosts.toml"), text).unwrap();
    let config = RegistryConfig { hosts_dirs: vec![directory.path().to_owned()], ..RegistryConfig::default() };
    (Registry::new(config), directory)
}

#[tokio::test]
async fn a_mirror_is_requested_below_its_path_for_what_it_can_and_with_its_header() {
    for (path, settings, prefix, resolves) in [
        ("", "", "/v2", true),
        ("/harbor/v2", "", "/harbor/v2", true),
        ("/harbor", "", "/harbor/v2", true),
        ("/harbor", "override_path = true\n", "/harbor", true),
        ("", "capabilities = [\"pull\"]\n", "/v2", false),
    ] {
        let (fake, mirror) = (FakeRegistry::start().await, FakeRegistry::start().await);
        for registry in [&fake, &mirror] {
            registry.put_image("v1", &[b"layer"]);
        }
        let url = format!("http://{}{path}", mirror.address);
        let text = format!("[host.\"{url}\"]\n{settings}[host.\"{url}\".header]\nx-key = \"of the mirror\"\n");
        let (registry, _directory) = configured(&fake.address.to_string(), &text);
        let resolved = registry.resolve(&fake.reference("team/app:v1"), None, &platform()).await.unwrap();
        let layer = &resolved.manifest.layers[0];
        assert_eq!(read(&resolved, layer).await.unwrap(), b"layer", "{url} {settings}");

        let (of_mirror, of_registry) = (mirror.seen(), fake.seen());
        let wanted = [format!("{prefix}/team/app/manifests/v1"), format!("{prefix}/team/app/blobs/{}", layer.digest)];
        let paths: Vec<&str> = of_mirror.iter().map(|seen| &*seen.path).collect();
        assert_eq!(paths, wanted[usize::from(!resolves)..], "{url} {settings}");
        for seen in &of_mirror {
            assert_eq!(seen.query, format!("ns={}", fake.address));
            assert_eq!(seen.headers["x-key"], "of the mirror");
        }
        assert_eq!(of_registry.len(), usize::from(!resolves), "{url} {settings}");
        assert!(of_registry.iter().all(|seen| !seen.headers.contains_key("x-key") && seen.query.is_empty()));
    }
}

#[tokio::test]
async fn the_default_folder_leads_to_a_shared_cache_that_gets_the_registrys_name_and_no_credential() {
    let cache = FakeRegistry::start().await;
    cache.put_image("v1", &[]);
    let (registry, _directory) = configured("_default", &format!("server = \"http://{}\"\n", cache.address));
    let reference = "registry.example/team/app:v1".parse().unwrap();
    let credential = credential("hunter2pass");
    registry.resolve(&reference, Some(&credential), &platform()).await.unwrap();
    cache.guard(Guard::Basic("user", "hunter2pass"));
    registry.resolve(&reference, Some(&credential), &platform()).await.unwrap_err();
    let seen = cache.seen();
    assert!(seen.len() > 1 && shown(&seen).iter().all(Option::is_none), "{seen:?}");
    assert!(seen.iter().all(|seen| seen.query == "ns=registry.example"), "{seen:?}");
}

#[tokio::test]
async fn the_credential_of_a_prefix_stays_from_its_location() {
    for (location, insecure) in [("team", ""), ("copies/team", "insecure = true\n")] {
        let fake = FakeRegistry::start().await;
        fake.guard(Guard::Basic("user", "hunter2pass"));
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("registries.conf");
        let place = format!("{}/{location}", fake.address);
        let text = format!("[[registry]]\nprefix = \"prefix.example/team\"\nlocation = \"{place}\"\n{insecure}");
        std::fs::write(&file, text).unwrap();
        let config = RegistryConfig { hosts_dirs: vec![file], ..RegistryConfig::default() };
        let registry = Registry::new(config);
        let reference = "prefix.example/team/app:v1".parse().unwrap();
        let named = Credential { server_address: "prefix.example".to_owned(), ..credential("hunter2pass") };
        for credential in [credential("hunter2pass"), named] {
            let error = registry.resolve(&reference, Some(&credential), &platform()).await.unwrap_err();
            assert_eq!(error.kind(), RuntimeErrorKind::Denied, "{}", error.chain());
            assert!(error.hint().is_some_and(|hint| hint.contains(&fake.address.to_string())), "{error:?}");
            let seen = fake.seen();
            assert!(!seen.is_empty() && shown(&seen).iter().all(Option::is_none), "{seen:?}");
        }
    }
}
