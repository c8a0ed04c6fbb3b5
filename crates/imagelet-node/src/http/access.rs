//! The access policy of HTTP: decides by token, host name, and a header that a foreign page cannot send.

use std::{net::IpAddr, path::Path, sync::Arc};

use aws_lc_rs::{
    constant_time::verify_slices_are_equal,
    digest::{Digest, SHA256, digest},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::HeaderMap;
use imagelet_core::trusted_files;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::{config::HttpSettings, failure::Failure};

/// The header that every action must have. This server grants no CORS, so a foreign page cannot send it.
const ACTION: &str = "x-imagelet-action";
/// The permitted length of a token. A shorter token could be guessed.
const TOKEN_LENGTH: std::ops::RangeInclusive<usize> = 32..=512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A health check without details. It is open to any client and any host name.
    Probe,
    Asset,
    Read,
    Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Allow,
    ForeignHost,
    Unauthenticated,
    ActionsOff,
    ForgedAction,
    ForeignPage,
}

/// The current access policy. A reload replaces it.
#[derive(Clone, Debug)]
pub struct HttpAccess {
    policy: watch::Sender<Arc<AccessPolicy>>,
    bound: Option<String>,
}

impl HttpAccess {
    pub fn load(settings: &HttpSettings) -> Result<Self, Failure> {
        let policy = AccessPolicy::load(settings)?;
        Ok(Self { policy: watch::Sender::new(Arc::new(policy)), bound: settings.address.clone() })
    }

    /// Builds the policy of new settings for the listener's address. Without a new token, the current token stays.
    pub fn next(&self, settings: &HttpSettings) -> Result<AccessPolicy, Failure> {
        let mut policy = AccessPolicy::load(&HttpSettings { address: self.bound.clone(), ..settings.clone() })?;
        policy.token = policy.token.or_else(|| self.policy().token.clone());
        Ok(policy)
    }

    /// Replaces the policy. If the token changes, the open streams end.
    pub fn replace(&self, mut policy: AccessPolicy) {
        let in_force = self.policy();
        if in_force.token == policy.token {
            policy.ended = in_force.ended.clone();
        } else {
            in_force.ended.cancel();
        }
        self.policy.send_replace(Arc::new(policy));
    }

    pub fn has_token(&self) -> bool {
        self.policy().token.is_some()
    }

    pub(super) fn policy(&self) -> Arc<AccessPolicy> {
        Arc::clone(&self.policy.borrow())
    }
}

#[derive(Debug)]
pub struct AccessPolicy {
    token: Option<TokenDigest>,
    /// Cancelled when the token changes. The streams that this policy permitted then end.
    pub(super) ended: CancellationToken,
    hosts: Vec<String>,
    has_actions: bool,
}

/// The digest of a token. The token itself is not stored.
#[derive(Clone)]
struct TokenDigest(Digest);

impl TokenDigest {
    fn of(token: &str) -> Self {
        Self(digest(&SHA256, token.as_bytes()))
    }
}

impl PartialEq for TokenDigest {
    /// Takes the same time for every wrong token, so that a client cannot guess a token part by part.
    fn eq(&self, other: &Self) -> bool {
        verify_slices_are_equal(self.0.as_ref(), other.0.as_ref()).is_ok()
    }
}

impl std::fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

impl AccessPolicy {
    pub fn load(settings: &HttpSettings) -> Result<Self, Failure> {
        let token = settings.token_file.as_deref().map(read_token).transpose()?;
        Ok(Self::new(settings, token.as_ref().map(|token| token.as_str())))
    }

    fn new(settings: &HttpSettings, token: Option<&str>) -> Self {
        let own = settings.address.iter().filter_map(|address| Some(address.rsplit_once(':')?.0.to_owned()));
        let hosts = own.chain(settings.host_names.iter().cloned()).chain(["localhost".to_owned()]);
        Self {
            token: token.map(TokenDigest::of),
            ended: CancellationToken::new(),
            hosts: hosts.map(|host| host.to_ascii_lowercase()).collect(),
            has_actions: settings.actions,
        }
    }

    pub(super) fn decide(&self, purpose: Purpose, headers: &HeaderMap) -> Decision {
        let (authorization, host) = (text_of(headers, "authorization"), text_of(headers, "host"));
        let has_token = authorization.and_then(token_of).is_some_and(|token| self.accepts(&token));
        // A page of a foreign site does not know the token, so a request with the token may name any host.
        if purpose != Purpose::Probe && !has_token && !host.is_some_and(|host| self.is_own(host)) {
            return Decision::ForeignHost;
        }
        if matches!(purpose, Purpose::Probe | Purpose::Asset) {
            return Decision::Allow;
        }
        if self.token.is_some() && !has_token {
            return Decision::Unauthenticated;
        }
        let is_foreign = text_of(headers, "sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"));
        if purpose == Purpose::Read {
            // A browser also adds a `Basic` login to requests by foreign pages, so these are rejected.
            let is_login = authorization.and_then(|it| it.split_once(' ')).is_some_and(|(scheme, _)| is_basic(scheme));
            // The user opens the address as a page. Another page does not embed or fetch it.
            let is_navigation = text_of(headers, "sec-fetch-mode") == Some("navigate")
                && text_of(headers, "sec-fetch-dest") == Some("document");
            let is_fetched = is_login && is_foreign && !is_navigation;
            return if is_fetched { Decision::ForeignPage } else { Decision::Allow };
        }
        if !self.has_actions || self.token.is_none() {
            Decision::ActionsOff
        } else if !headers.contains_key(ACTION) || is_foreign {
            Decision::ForgedAction
        } else {
            Decision::Allow
        }
    }

    fn accepts(&self, token: &str) -> bool {
        self.token.as_ref().is_some_and(|own| *own == TokenDigest::of(token))
    }

    /// Whether a `Host` header names this server. IP addresses are accepted, because DNS rebinding needs a name.
    fn is_own(&self, host: &str) -> bool {
        let host = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.split_once(':').map_or(host, |(name, _)| name),
        };
        let name = host.trim_end_matches('.').to_ascii_lowercase();
        name.parse::<IpAddr>().is_ok() || self.hosts.contains(&name)
    }
}

pub(super) fn text_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The token of an `Authorization` header: `Bearer` from a program, or the password of a browser's prompt.
fn token_of(authorization: &str) -> Option<Zeroizing<String>> {
    let (scheme, value) = authorization.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(Zeroizing::new(value.trim().to_owned()));
    }
    if !is_basic(scheme) {
        return None;
    }
    let login = Zeroizing::new(BASE64_STANDARD.decode(value.trim()).ok()?);
    let (_, password) = std::str::from_utf8(&login).ok()?.split_once(':')?;
    Some(Zeroizing::new(password.to_owned()))
}

fn is_basic(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("basic")
}

fn read_token(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let place = path.display();
    let failed = |error: std::io::Error| Failure::because(format!("could not read http.tokenFile `{place}`"), &error);
    let token = trusted_files::read_secret("http.tokenFile", path, *TOKEN_LENGTH.end()).map_err(failed)?;
    if !TOKEN_LENGTH.contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let (min, max) = (TOKEN_LENGTH.start(), TOKEN_LENGTH.end());
        let message =
            format!("http.tokenFile `{place}` must hold one line of {min} to {max} characters without spaces");
        return Err(Failure::invalid(message).or_hint(&format!("(umask 077; openssl rand -hex 32 > {place})")));
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use http::HeaderName;

    use super::*;

    #[derive(Clone, Copy, Debug, Default)]
    struct Presented<'a> {
        host: Option<&'a str>,
        authorization: Option<&'a str>,
        has_action_header: bool,
        fetch_site: Option<&'a str>,
        is_navigation: bool,
    }

    impl Presented<'_> {
        fn headers(&self) -> HeaderMap {
            let navigation = |value| self.is_navigation.then_some(value);
            let headers = [
                ("host", self.host),
                ("authorization", self.authorization),
                (ACTION, self.has_action_header.then_some("1")),
                ("sec-fetch-site", self.fetch_site),
                ("sec-fetch-mode", navigation("navigate")),
                ("sec-fetch-dest", navigation("document")),
            ];
            let given = headers.into_iter().filter_map(|(name, value)| Some((name, value?)));
            given.map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
        }
    }

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn policy(token: Option<&str>, actions: bool) -> AccessPolicy {
        let settings = HttpSettings {
            address: Some("node-1:9100".into()),
            host_names: vec!["Node.Example".into()],
            actions,
            ..HttpSettings::default()
        };
        AccessPolicy::new(&settings, token)
    }

    #[test]
    fn only_requests_for_this_servers_own_names_are_answered() {
        let policy = policy(None, false);
        for (host, is_own) in [
            ("127.0.0.1:9100", true),
            ("localhost:9100", true),
            ("LOCALHOST", true),
            ("localhost.", true),
            ("[::1]:9100", true),
            ("192.0.2.7", true),
            ("node-1:9100", true),
            ("node.example:80", true),
            ("evil.example", false),
            ("localhost.evil.example:9100", false),
            ("127.0.0.1.evil.example", false),
            ("[evil]", false),
            ("", false),
        ] {
            let presented = Presented { host: Some(host), ..Presented::default() };
            let expected = if is_own { Decision::Allow } else { Decision::ForeignHost };
            for purpose in [Purpose::Read, Purpose::Asset] {
                assert_eq!(policy.decide(purpose, &presented.headers()), expected, "{host}");
            }
            assert_eq!(policy.decide(Purpose::Probe, &presented.headers()), Decision::Allow);
        }
        assert_eq!(policy.decide(Purpose::Read, &HeaderMap::new()), Decision::ForeignHost);
    }

    #[test]
    fn a_token_is_needed_whole_and_answers_under_any_name() {
        let policy = policy(Some(TOKEN), false);
        let bearer = format!("Bearer {TOKEN}");
        let basic = |token: &str| format!("Basic {}", BASE64_STANDARD.encode(format!("anyone:{token}")));
        let (longer, lower) = (format!("{bearer}0"), bearer.to_ascii_lowercase());
        for (authorization, expected) in [
            (None, Decision::Unauthenticated),
            (Some(bearer.as_str()), Decision::Allow),
            (Some(lower.as_str()), Decision::Allow),
            (Some(&bearer[..bearer.len() - 1]), Decision::Unauthenticated),
            (Some(longer.as_str()), Decision::Unauthenticated),
            (Some("Bearer "), Decision::Unauthenticated),
            (Some(TOKEN), Decision::Unauthenticated),
            (Some("Basic MDEyMzQ1Njc4OWFiY2RlZg=="), Decision::Unauthenticated),
            (Some(&basic(TOKEN)), Decision::Allow),
            (Some(&basic(&TOKEN[1..])), Decision::Unauthenticated),
        ] {
            let presented = Presented { host: Some("localhost"), authorization, ..Presented::default() };
            assert_eq!(policy.decide(Purpose::Read, &presented.headers()), expected, "{authorization:?}");
        }
        let foreign = Presented { host: Some("scrape.example"), authorization: Some(&bearer), ..Presented::default() };
        assert_eq!(policy.decide(Purpose::Read, &foreign.headers()), Decision::Allow);
    }

    #[test]
    fn a_foreign_page_does_not_read_by_the_login_of_the_browser() {
        let policy = policy(Some(TOKEN), false);
        let basic = format!("Basic {}", BASE64_STANDARD.encode(format!("anyone:{TOKEN}")));
        let bearer = format!("Bearer {TOKEN}");
        for (authorization, fetch_site, is_navigation, expected) in [
            (&basic, None, false, Decision::Allow),
            (&basic, Some("same-origin"), false, Decision::Allow),
            (&basic, Some("none"), true, Decision::Allow),
            (&basic, Some("cross-site"), true, Decision::Allow),
            (&basic, Some("cross-site"), false, Decision::ForeignPage),
            (&basic, Some("same-site"), false, Decision::ForeignPage),
            (&bearer, Some("cross-site"), false, Decision::Allow),
        ] {
            let authorization = Some(authorization.as_str());
            let presented =
                Presented { host: Some("localhost"), authorization, fetch_site, is_navigation, ..Presented::default() };
            assert_eq!(policy.decide(Purpose::Read, &presented.headers()), expected, "{presented:?}");
        }
    }

    #[test]
    fn an_action_needs_the_setting_a_token_and_a_header_that_foreign_pages_cannot_send() {
        let bearer = format!("Bearer {TOKEN}");
        let presented = Presented {
            host: Some("localhost"),
            authorization: Some(&bearer),
            has_action_header: true,
            ..Presented::default()
        };
        let decide =
            |policy: AccessPolicy, presented: Presented<'_>| policy.decide(Purpose::Action, &presented.headers());
        assert_eq!(decide(policy(Some(TOKEN), true), presented), Decision::Allow);
        let of_page = Presented { fetch_site: Some("same-origin"), ..presented };
        assert_eq!(decide(policy(Some(TOKEN), true), of_page), Decision::Allow);
        assert_eq!(decide(policy(Some(TOKEN), false), presented), Decision::ActionsOff);
        assert_eq!(decide(policy(None, true), presented), Decision::ActionsOff);
        let without = Presented { authorization: None, ..presented };
        assert_eq!(decide(policy(Some(TOKEN), true), without), Decision::Unauthenticated);
        let simple = Presented { has_action_header: false, ..presented };
        assert_eq!(decide(policy(Some(TOKEN), true), simple), Decision::ForgedAction);
        for site in ["cross-site", "same-site"] {
            let foreign = Presented { fetch_site: Some(site), ..presented };
            assert_eq!(decide(policy(Some(TOKEN), true), foreign), Decision::ForgedAction);
        }
    }

    #[test]
    fn a_reload_withdraws_actions_and_keeps_the_token_and_the_address_of_the_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let write = |token: &str| {
            fs::write(&path, token).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
        write(TOKEN);
        let first = HttpSettings {
            address: Some("node-1:9100".into()),
            token_file: Some(path.clone()),
            actions: true,
            ..HttpSettings::default()
        };
        let access = HttpAccess::load(&first).unwrap();
        let reload = |settings: &HttpSettings| {
            let before = access.policy();
            access.replace(access.next(settings).unwrap());
            before.ended.is_cancelled()
        };
        let decide = |host, token: &str| {
            let authorization = format!("Bearer {token}");
            let presented = Presented { host: Some(host), has_action_header: true, ..Presented::default() };
            let with = Presented { authorization: Some(&authorization), ..presented };
            (
                access.policy().decide(Purpose::Asset, &presented.headers()),
                access.policy().decide(Purpose::Action, &with.headers()),
            )
        };
        assert_eq!(decide("node-1", TOKEN), (Decision::Allow, Decision::Allow));
        let moved = HttpSettings { address: Some("node-2:9100".into()), ..first.clone() };
        assert!(!reload(&moved), "the token is the same");
        assert_eq!(decide("node-1", TOKEN), (Decision::Allow, Decision::Allow), "the listener has its old address");
        assert_eq!(decide("node-2", TOKEN).0, Decision::ForeignHost);
        let withdrawn = HttpSettings { address: first.address.clone(), ..HttpSettings::default() };
        assert!(!reload(&withdrawn));
        assert_eq!(decide("node-1", TOKEN), (Decision::Allow, Decision::ActionsOff));
        assert_eq!(decide("node-1", "wrong").1, Decision::Unauthenticated, "an open address keeps its token");
        let other = "another token of 32 bytes".replace(' ', "-") + "-1234567";
        write(&other);
        assert!(reload(&first), "streams of the old token end");
        assert_eq!(
            (decide("node-1", TOKEN).1, decide("node-1", &other).1),
            (Decision::Unauthenticated, Decision::Allow)
        );
    }

    #[test]
    fn a_token_file_that_others_may_read_or_that_holds_no_token_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let settings = HttpSettings { token_file: Some(path.clone()), ..HttpSettings::default() };
        let load = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            AccessPolicy::load(&settings).map(|policy| policy.accepts(TOKEN)).map_err(|failure| {
                assert!(!failure.to_string().contains("secret"), "{failure}");
                failure.to_string()
            })
        };
        assert_eq!(load(TOKEN, 0o600), Ok(true));
        assert_eq!(load(&format!("{TOKEN}\n"), 0o640), Ok(true));
        assert_eq!(load(&format!("{TOKEN}x"), 0o600), Ok(false));
        for (text, mode, words) in [
            (TOKEN.to_owned(), 0o604, "every user may read"),
            (TOKEN.to_owned(), 0o602, "every user may write"),
            ("secret".to_owned(), 0o600, "32 to 512 characters"),
            (format!("secret {TOKEN}"), 0o600, "without spaces"),
            (format!("{TOKEN}\nsecret"), 0o600, "one line"),
            ("s".repeat(513), 0o600, "32 to 512 characters"),
            (String::new(), 0o600, "32 to 512 characters"),
        ] {
            let refused = load(&text, mode).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
        fs::remove_file(&path).unwrap();
        assert!(AccessPolicy::load(&settings).is_err());
    }
}
