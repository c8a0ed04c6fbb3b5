//! Tokens: whose they are, and token services that answer in other ways.

use super::*;

#[tokio::test]
async fn a_token_of_one_credential_never_serves_another() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[]);
    fake.guard(bearer());
    let registry = registry();
    let reference = fake.reference("team/app:v1");
    assert!(registry.resolve(&reference, Some(&credential("hunter2pass")), &platform()).await.is_ok());
    for other in [None, Some(&credential("other"))] {
        let error = registry.resolve(&reference, other, &platform()).await.unwrap_err();
        assert_eq!(error.kind(), RuntimeErrorKind::Denied);
    }
}

#[tokio::test]
async fn identity_and_registry_tokens_open_what_they_are_for() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[]);
    fake.guard(Guard::Bearer { shown: None, form: Some("refresh_token=refresh%2Fme".to_owned()), realm: None });
    let with = |kind| Credential { kind, server_address: String::new() };
    let identity = with(CredentialKind::IdentityToken(Secret::new("refresh/me")));
    pull(&fake, Some(&identity)).await.unwrap();
    let seen = fake.seen();
    assert_eq!((seen[1].method.as_str(), seen[1].query.as_str()), ("POST", ""));
    assert!(seen[1].body.contains("grant_type=refresh_token"), "{}", seen[1].body);

    let registry_token = with(CredentialKind::RegistryToken(Secret::new("token-0")));
    pull(&fake, Some(&registry_token)).await.unwrap();
    assert_eq!(shown(&fake.seen()), [Some("Bearer token-0")]);
    fake.expire_tokens();
    assert_eq!(pull(&fake, Some(&registry_token)).await.unwrap_err().kind(), RuntimeErrorKind::Denied);
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn a_token_service_that_knows_only_forms_gets_one_and_one_token_serves_concurrent_requests() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[b"one", b"two", b"three"]);
    let form = Some("grant_type=password&username=user&password=hunter2pass".to_owned());
    fake.guard(Guard::Bearer { shown: None, form, realm: None });
    fake.trick("/token", 1, answer(405, &[], ""));
    let resolved = pull(&fake, Some(&credential("hunter2pass"))).await.unwrap();
    let tokens: Vec<_> = fake.seen().into_iter().filter(|seen| seen.path == "/token").map(|seen| seen.method).collect();
    assert_eq!(tokens, ["GET", "POST"]);
    fake.guard(bearer());
    fake.expire_tokens();
    // All layers are refused before the token is there.
    fake.trick("/token", 9, Trick::Late(Duration::from_secs(1)));
    let layers = &resolved.manifest.layers;
    let reads = futures_util::future::join_all(layers.iter().map(|layer| read(&resolved, layer))).await;
    assert!(reads.into_iter().all(|read| read.is_ok()));
    assert_eq!(fake.seen().iter().filter(|seen| seen.path == "/token").count(), 1);
    fake.clear_tricks();
    fake.trick("/token", 9, answer(405, &[], ""));
    let error = pull(&fake, Some(&credential("hunter2pass"))).await.unwrap_err();
    assert_eq!((error.kind(), error.fault().stage), (RuntimeErrorKind::Denied, Stage::Token), "{}", error.chain());
}

#[tokio::test]
async fn a_token_service_that_misbehaves_is_given_up() {
    for (trick, kind) in [
        (answer(200, &[("content-type", "text/html")], "<html>"), RuntimeErrorKind::Denied),
        (Trick::Answer(200, vec![], vec![b'x'; 2 << 20].into()), RuntimeErrorKind::Denied),
        (answer(200, &[], r#"{"token":"a\nb"}"#), RuntimeErrorKind::Denied),
        (answer(503, &[], ""), RuntimeErrorKind::RegistryUnavailable),
        (answer(302, &[("location", "http://127.0.0.2:1/token")], ""), RuntimeErrorKind::Other),
    ] {
        let fake = FakeRegistry::start().await;
        fake.guard(bearer());
        fake.trick("/token", 9, trick.clone());
        let error = pull(&fake, Some(&credential("hunter2pass"))).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{trick:?}: {}", error.chain());
    }
    let fake = FakeRegistry::start().await;
    fake.guard(Guard::Bearer { shown: None, form: None, realm: Some("http://auth.example/token".to_owned()) });
    let error = pull(&fake, Some(&credential("hunter2pass"))).await.unwrap_err();
    assert!(error.to_string().contains("not encrypted"), "{error}");
    fake.trick("/v1", 9, answer(401, &[("www-authenticate", "Bearer realm=\"x")], ""));
    assert_eq!(pull(&fake, None).await.unwrap_err().kind(), RuntimeErrorKind::Denied);
}

#[tokio::test]
async fn a_token_request_that_waits_for_a_slot_of_its_host_is_not_late() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[b"layer"]);
    fake.guard(bearer());
    let config = RegistryConfig {
        connections_per_host: std::num::NonZeroUsize::MIN,
        timeouts: RegistryTimeouts {
            header: Duration::from_secs(2),
            retry_budget: Duration::ZERO,
            ..RegistryTimeouts::default()
        },
        ..RegistryConfig::default()
    };
    let registry = Registry::new(config);
    let reference = fake.reference("team/app:v1");
    let resolved = registry.resolve(&reference, Some(&credential("hunter2pass")), &platform()).await.unwrap();
    fake.expire_tokens();
    fake.seen();
    let (slots, origin) = (&registry.shared.transport.slots, resolved.session.hosts[0].host.origin.clone());
    let next = Urgency::is_next();
    let first = slots.acquire(&origin, &next).await;
    let mut reading = Box::pin(read(&resolved, &resolved.manifest.layers[0]));
    let mut second = Box::pin(slots.acquire(&origin, &next));
    assert!(futures_util::poll!(&mut reading).is_pending() && futures_util::poll!(&mut second).is_pending());
    drop(first);
    let long = async {
        let slot = second.await;
        assert_eq!(shown(&fake.seen()), [Some("Bearer token-0")], "the token is requested while this one is held");
        tokio::time::sleep(Duration::from_secs(4)).await;
        drop(slot);
    };
    let (read, ()) = tokio::join!(reading, long);
    assert_eq!(read.unwrap_or_else(|error| panic!("{}", error.chain())), b"layer");
    assert!(!registry.shared.health.is_bad(&origin, reference.repository()));
}

#[tokio::test]
async fn a_wait_that_a_token_service_requests_holds_back_no_request_to_its_registry() {
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[b"layer"]);
    fake.guard(bearer());
    let (registry, reference) = (registry(), fake.reference("team/app:v1"));
    let credential = credential("hunter2pass");
    let granted = registry.resolve(&reference, Some(&credential), &platform()).await.unwrap();
    fake.trick("/token", 9, answer(503, &[("retry-after", "50")], ""));
    let error = registry.resolve(&reference, Some(&credential), &platform()).await.unwrap_err();
    assert_eq!(error.fault().stage, Stage::Token, "{}", error.chain());
    assert_eq!(granted.session.standing(0).held_until, None);
}

#[tokio::test]
async fn a_login_is_not_accepted_where_the_credential_was_not_sent() {
    let services = FakeRegistry::start().await;
    services.guard(Guard::Bearer { shown: None, form: None, realm: None });
    let fake = FakeRegistry::start().await;
    let realm = Some(format!("http://{}/token", services.address));
    fake.guard(Guard::Bearer { shown: None, form: None, realm });
    let registry = fake.reference("team/app:v1").domain().to_owned();
    let error = crate::check_login(RegistryConfig::default(), &registry, &credential("hunter2pass")).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Denied, "{}", error.chain());
    assert!(error.to_string().contains("another origin and not encrypted"), "{error}");
    assert!(!error.chain().contains("/login"), "{}", error.chain());

    // Nor where another host answers.
    let fake = FakeRegistry::start().await;
    let registry = fake.reference("team/app:v1").domain().to_owned();
    for (status, headers, kind, words) in [
        (
            302,
            vec![("location", format!("http://{}/", services.address))],
            RuntimeErrorKind::Other,
            "which is not followed here",
        ),
        (404, Vec::new(), RuntimeErrorKind::RegistryUnavailable, "answered 404 Not Found for a login"),
    ] {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        fake.trick("/v2/", 9, answer(status, &headers, ""));
        let error = crate::check_login(RegistryConfig::default(), &registry, &credential("hunter2pass")).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), kind, "{}", error.chain());
        assert!(error.chain().contains(words), "{}", error.chain());
        fake.clear_tricks();
    }

    // A name without dot and port is a repository of Docker Hub.
    let error = crate::check_login(RegistryConfig::default(), "myreg", &credential("hunter2pass")).await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::InvalidArgument, "{}", error.chain());
    assert!(error.hint().is_some_and(|hint| hint.contains("`myreg:443`")), "{error:?}");
}

#[tokio::test]
async fn a_login_is_accepted_by_the_registry_or_its_token_service_and_asks_for_no_repository() {
    let check = async |fake: &FakeRegistry, password: &str| {
        let registry = fake.reference("team/app:v1").domain().to_owned();
        crate::check_login(RegistryConfig::default(), &registry, &credential(password)).await
    };
    let fake = FakeRegistry::start().await;
    assert_eq!(check(&fake, "hunter2pass").await.unwrap(), crate::LoginCheck::NotAsked);
    for guard in [bearer(), Guard::Basic("user", "hunter2pass")] {
        fake.guard(guard.clone());
        assert_eq!(check(&fake, "hunter2pass").await.unwrap(), crate::LoginCheck::Accepted, "{guard:?}");
        assert!(fake.seen().iter().all(|seen| !seen.query.contains("scope")), "{guard:?}");
        let error = check(&fake, "wrong-word").await.unwrap_err();
        assert_eq!(error.kind(), RuntimeErrorKind::Denied, "{guard:?}");
        assert!(error.chain().contains("does not accept this user and password for a login"), "{}", error.chain());
        assert!(!error.chain().contains("wrong-word") && !error.chain().contains("`login`"), "{}", error.chain());
    }
}

#[tokio::test]
async fn a_credential_that_was_not_asked_for_is_shown_before_a_refusal_is_believed() {
    for (status, headers) in [(403, &[][..]), (404, &[]), (401, &[]), (403, &[("www-authenticate", "Negotiate")])] {
        for guard in [Guard::Basic("user", "hunter2pass"), bearer()] {
            let fake = FakeRegistry::start().await;
            fake.put_image("v1", &[b"layer"]);
            fake.guard(guard.clone());
            fake.trick("/v1", 1, answer(status, headers, ""));
            let resolved = pull(&fake, Some(&credential("hunter2pass"))).await;
            let resolved = resolved.unwrap_or_else(|error| panic!("{status} {guard:?}: {}", error.chain()));
            let paths: Vec<String> = fake.seen().into_iter().map(|seen| seen.path).collect();
            assert_eq!(paths[..2], ["/v2/team/app/manifests/v1", "/v2/"], "{status} {guard:?}");
            read(&resolved, &resolved.manifest.layers[0]).await.unwrap();
            // Shown once, and refused: nothing is left to show.
            fake.seen();
            fake.trick("/v1", 9, answer(status, headers, ""));
            let error = pull(&fake, Some(&credential("hunter2pass"))).await.unwrap_err();
            assert!(error.chain().contains("does not accept") || status == 404, "{}", error.chain());
            assert!(fake.seen().iter().filter(|seen| seen.path == "/v2/").count() == 1, "{status} {guard:?}");
        }
    }
    // What a server that fails for a moment answers says nothing of credentials.
    let fake = FakeRegistry::start().await;
    fake.put_image("v1", &[b"layer"]);
    fake.guard(Guard::Basic("user", "hunter2pass"));
    fake.trick("/v1", 2, answer(404, &[], ""));
    fake.trick("/v2/", 1, answer(503, &[], ""));
    pull(&fake, Some(&credential("hunter2pass"))).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    // Without a credential there is nothing to show.
    let fake = FakeRegistry::start().await;
    fake.trick("/v1", 9, answer(403, &[], ""));
    pull(&fake, None).await.unwrap_err();
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn no_message_calls_a_credential_rejected_that_was_not_sent() {
    let identity =
        Credential { kind: CredentialKind::IdentityToken(Secret::new("refresh/me")), server_address: String::new() };
    for (status, challenge) in [(403, None), (401, None), (401, Some(r#"Digest realm="x""#)), (401, Some("Basic"))] {
        let fake = FakeRegistry::start().await;
        let headers: Vec<_> = challenge.into_iter().map(|text| ("www-authenticate", text)).collect();
        fake.trick("/v1", 9, answer(status, &headers, ""));
        let credential = if challenge == Some("Basic") { identity.clone() } else { credential("hunter2pass") };
        let error = pull(&fake, Some(&credential)).await.unwrap_err();
        assert_eq!(error.kind(), RuntimeErrorKind::Denied, "{status} {challenge:?}");
        assert!(!error.chain().contains("does not accept"), "{status} {challenge:?}: {}", error.chain());
        assert!(error.chain().contains("not sent"), "{status} {challenge:?}: {}", error.chain());
        assert!(shown(&fake.seen()).iter().all(Option::is_none), "{status} {challenge:?}");
    }
    let fake = FakeRegistry::start().await;
    fake.trick("/v1", 9, answer(401, &[("www-authenticate", "Basic")], ""));
    let kind = CredentialKind::RegistryToken(Secret::new("to\nken"));
    let error = pull(&fake, Some(&Credential { kind, ..identity })).await.unwrap_err();
    assert!(error.chain().contains("not sent"), "a token that no header carries: {}", error.chain());
}

#[tokio::test]
async fn a_password_that_ends_with_a_line_break_is_hinted_at_where_it_is_rejected() {
    for (password, is_hinted) in [("hunter2pass\n", true), ("hunter2pass\r\n", true), ("hunter3pass", false)] {
        for guard in [Guard::Basic("user", "hunter2pass"), bearer()] {
            let fake = FakeRegistry::start().await;
            fake.guard(guard);
            let error = pull(&fake, Some(&credential(password))).await.unwrap_err();
            let hint = error.hint().expect("a hint");
            assert_eq!(hint.contains("line break"), is_hinted, "{password:?}: {hint}");
            assert!(!hint.contains("hunter"), "{hint}");
        }
    }
}
