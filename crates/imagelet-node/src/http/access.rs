//! Which HTTP requests are answered: by token, session, host name, and the header that a foreign page cannot send.

use std::{
    fmt::Write as _,
    net::IpAddr,
    path::Path,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, SystemTime},
};

use aws_lc_rs::{constant_time::verify_slices_are_equal, hmac};
use imagelet_core::trusted_files;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::{api::since_epoch, config::HttpSettings, failure::Failure};

/// A shorter token could be guessed.
const TOKEN_LENGTH: std::ops::RangeInclusive<usize> = 32..=512;
/// How long a login in a browser lasts, and a stream that it opened.
pub(super) const SESSION_MAX: Duration = Duration::from_hours(12);
/// How far a clock is set back by a correction.
const CLOCK_SLACK: Duration = Duration::from_mins(5);
const COOKIE: &str = "imagelet_session";

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Health, without details: any client, under any name.
    Probe,
    /// The files of the pages.
    Asset,
    /// The begin and the end of a session.
    Login,
    Read,
    /// It changes the node.
    Action,
}

/// The parts of a request that decide on it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Presented<'a> {
    pub(super) host: Option<&'a str>,
    pub(super) authorization: Option<&'a str>,
    pub(super) cookies: Option<&'a str>,
    /// A page of a foreign site cannot send this header without the consent of this server.
    pub(super) has_action_header: bool,
    /// `Sec-Fetch-Site`, which every present browser sends.
    pub(super) fetch_site: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Allow,
    ForeignHost,
    /// Neither a token nor a session.
    Unauthenticated,
    ActionsOff,
    ForgedAction,
    /// A page of a foreign site sent it.
    ForgedLogin,
}

/// The policy in force; a reload replaces it.
#[derive(Clone, Debug)]
pub struct HttpAccess {
    policy: Arc<RwLock<Arc<AccessPolicy>>>,
    /// The address of the listener, which no reload changes.
    bound: Option<String>,
}

impl HttpAccess {
    /// The policy of the first start.
    pub fn load(settings: &HttpSettings) -> Result<Self, Failure> {
        let policy = AccessPolicy::load(settings)?;
        Ok(Self { policy: Arc::new(RwLock::new(Arc::new(policy))), bound: settings.address.clone() })
    }

    /// The policy of changed settings for the bound listener. One with a token keeps it where the settings name none: an
    /// open address never loses its token.
    pub fn next(&self, settings: &HttpSettings) -> Result<AccessPolicy, Failure> {
        let mut policy = AccessPolicy::load(&HttpSettings { address: self.bound.clone(), ..settings.clone() })?;
        policy.token = policy.token.or_else(|| self.policy().token.clone());
        Ok(policy)
    }

    /// Puts a policy in force. Streams end where their token changed.
    pub fn replace(&self, mut policy: AccessPolicy) {
        let mut in_force = self.policy.write().unwrap_or_else(PoisonError::into_inner);
        if in_force.has_token_of(&policy) {
            policy.ended = in_force.ended.clone();
        } else {
            in_force.ended.cancel();
        }
        *in_force = Arc::new(policy);
    }

    pub fn has_token(&self) -> bool {
        self.policy().has_token()
    }

    pub(super) fn policy(&self) -> Arc<AccessPolicy> {
        Arc::clone(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Which requests are answered.
#[derive(Debug)]
pub struct AccessPolicy {
    token: Option<Arc<TokenKey>>,
    /// The end of what this policy opened: cancelled when another token is in force.
    pub(super) ended: CancellationToken,
    /// Accepted names of this server, in lower case.
    hosts: Vec<String>,
    has_actions: bool,
}

/// What verifies a token and the sessions that were opened with it. The token itself is not kept.
struct TokenKey {
    key: hmac::Key,
    tag: hmac::Tag,
}

impl std::fmt::Debug for TokenKey {
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
            token: token.map(TokenKey::new).map(Arc::new),
            ended: CancellationToken::new(),
            hosts: hosts.map(|host| host.to_ascii_lowercase()).collect(),
            has_actions: settings.actions,
        }
    }

    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    fn has_token_of(&self, other: &Self) -> bool {
        let tag = |policy: &Self| policy.token.as_ref().map(|token| token.tag.as_ref().to_vec());
        tag(self) == tag(other)
    }

    pub(super) fn decide(&self, purpose: Purpose, presented: &Presented<'_>, now: SystemTime) -> Decision {
        let bearer = presented.authorization.and_then(|text| text.split_once(' '));
        let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
        let has_bearer = bearer.is_some_and(|token| self.accepts(token));
        // A page of a foreign site has no token to present.
        if purpose != Purpose::Probe && !has_bearer && !presented.host.is_some_and(|host| self.is_own(host)) {
            return Decision::ForeignHost;
        }
        let is_foreign = presented.fetch_site.is_some_and(|site| !matches!(site, "same-origin" | "none"));
        match purpose {
            Purpose::Login if is_foreign => return Decision::ForgedLogin,
            Purpose::Probe | Purpose::Asset | Purpose::Login => return Decision::Allow,
            Purpose::Read | Purpose::Action => {}
        }
        let has_session = || presented.cookies.is_some_and(|cookies| self.has_session(cookies, now));
        if self.token.is_some() && !has_bearer && !has_session() {
            return Decision::Unauthenticated;
        }
        if purpose == Purpose::Read {
            return Decision::Allow;
        }
        if !self.has_actions || self.token.is_none() {
            Decision::ActionsOff
        } else if !presented.has_action_header || is_foreign {
            Decision::ForgedAction
        } else {
            Decision::Allow
        }
    }

    /// The `Set-Cookie` value that a right token opens a session with; `None`: it is wrong.
    pub(super) fn log_in(&self, token: &str, now: SystemTime) -> Option<String> {
        let key = self.token.as_ref().filter(|_| self.accepts(token))?;
        let session = key.session(since_epoch(now + SESSION_MAX).as_secs());
        Some(format!("{COOKIE}={session}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}", SESSION_MAX.as_secs()))
    }

    /// The `Set-Cookie` value that ends a session in its browser.
    pub(super) fn log_out() -> String {
        format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")
    }

    fn accepts(&self, token: &str) -> bool {
        // The comparison takes the same time for every wrong token.
        self.token.as_ref().is_some_and(|key| hmac::verify(&key.key, token.as_bytes(), key.tag.as_ref()).is_ok())
    }

    fn has_session(&self, cookies: &str, now: SystemTime) -> bool {
        let Some(key) = &self.token else { return false };
        let mut values = cookies.split(';').filter_map(|cookie| cookie.trim().split_once('='));
        let Some((_, session)) = values.find(|(name, _)| *name == COOKIE) else { return false };
        let Some(Ok(expires)) = session.split_once('.').map(|(expires, _)| expires.parse()) else { return false };
        // One that ends later was made by a clock that has been set back since.
        let ends = since_epoch(now).as_secs() + 1..=since_epoch(now + SESSION_MAX + CLOCK_SLACK).as_secs();
        ends.contains(&expires) && verify_slices_are_equal(key.session(expires).as_bytes(), session.as_bytes()).is_ok()
    }

    /// Whether a `Host` header names this server. DNS can make a foreign name lead here, but no address.
    fn is_own(&self, host: &str) -> bool {
        let host = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.split_once(':').map_or(host, |(name, _)| name),
        };
        let name = host.trim_end_matches('.').to_ascii_lowercase();
        name.parse::<IpAddr>().is_ok() || self.hosts.contains(&name)
    }
}

impl TokenKey {
    fn new(token: &str) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
        let tag = hmac::sign(&key, token.as_bytes());
        Self { key, tag }
    }

    /// The cookie's value for a session that ends at this time, with its signature.
    fn session(&self, expires: u64) -> String {
        let tag = hmac::sign(&self.key, format!("session until {expires}").as_bytes());
        tag.as_ref().iter().fold(format!("{expires}."), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

fn read_token(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let place = path.display();
    let failed = |error: std::io::Error| Failure::because(format!("could not read http.tokenFile `{place}`"), &error);
    let token = trusted_files::read_secret("http.tokenFile", path, *TOKEN_LENGTH.end()).map_err(failed)?;
    if !TOKEN_LENGTH.contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let (min, max) = (TOKEN_LENGTH.start(), TOKEN_LENGTH.end());
        let message =
            format!("http.tokenFile `{place}` must hold one line of {min} to {max} characters without spaces");
        return Err(
            Failure::new("InvalidArgument", message).or_hint(&format!("(umask 077; openssl rand -hex 32 > {place})"))
        );
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

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

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)
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
            for purpose in [Purpose::Read, Purpose::Login, Purpose::Asset] {
                assert_eq!(policy.decide(purpose, &presented, now()), expected, "{host}");
            }
            assert_eq!(policy.decide(Purpose::Probe, &presented, now()), Decision::Allow);
        }
        assert_eq!(policy.decide(Purpose::Read, &Presented::default(), now()), Decision::ForeignHost);
    }

    #[test]
    fn a_token_is_needed_whole_and_answers_under_any_name() {
        let policy = policy(Some(TOKEN), false);
        let bearer = format!("Bearer {TOKEN}");
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
        ] {
            let presented = Presented { host: Some("localhost"), authorization, ..Presented::default() };
            assert_eq!(policy.decide(Purpose::Read, &presented, now()), expected, "{authorization:?}");
        }
        let foreign = Presented { host: Some("scrape.example"), authorization: Some(&bearer), ..Presented::default() };
        assert_eq!(policy.decide(Purpose::Read, &foreign, now()), Decision::Allow);
    }

    #[test]
    fn a_session_lasts_twelve_hours_and_ends_with_its_token() {
        let policy_now = policy(Some(TOKEN), false);
        assert_eq!(policy_now.log_in("wrong", now()), None);
        let cookie = policy_now.log_in(TOKEN, now()).expect("the token is right");
        assert!(cookie.contains("; HttpOnly; SameSite=Strict;") && !cookie.contains(TOKEN), "{cookie}");
        let value = cookie.split(';').next().unwrap().to_owned();
        let decide = |policy: &AccessPolicy, value: &str, after| {
            let cookies = format!("theme=dark; {value}");
            let presented = Presented { host: Some("localhost"), cookies: Some(&cookies), ..Presented::default() };
            policy.decide(Purpose::Read, &presented, now() + after)
        };
        assert_eq!(decide(&policy_now, &value, Duration::ZERO), Decision::Allow);
        assert_eq!(decide(&policy_now, &value, SESSION_MAX), Decision::Unauthenticated, "it has expired");
        let (minute, hour, year) = (Duration::from_mins(1), Duration::from_hours(1), Duration::from_hours(365 * 24));
        for (at, decision) in [
            (now() + hour, Decision::Allow),
            (now() + year, Decision::Unauthenticated),
            (now() - minute, Decision::Allow),
            (now() - hour, Decision::Unauthenticated),
            (now() - year, Decision::Unauthenticated),
        ] {
            let presented = Presented { host: Some("localhost"), cookies: Some(&value), ..Presented::default() };
            assert_eq!(policy_now.decide(Purpose::Read, &presented, at), decision, "the clock is set to {at:?}");
        }
        let later = value.replacen("18000", "18001", 1);
        let flipped = format!("{}0", &value[..value.len() - 1]);
        for forged in [later, flipped, value.replace('.', ""), format!("{COOKIE}=."), format!("{COOKIE}=9.é")] {
            if forged != value {
                assert_eq!(decide(&policy_now, &forged, Duration::ZERO), Decision::Unauthenticated, "{forged}");
            }
        }
        let other = policy(Some("another token of thirty-two bytes"), false);
        assert_eq!(decide(&other, &value, Duration::ZERO), Decision::Unauthenticated);
        assert_eq!(decide(&policy(None, false), "", Duration::ZERO), Decision::Allow, "without a token all may read");
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
        let decide = |policy: AccessPolicy, presented: Presented<'_>| policy.decide(Purpose::Action, &presented, now());
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
    fn a_page_of_a_foreign_site_neither_opens_nor_ends_a_session() {
        for (site, expected) in [
            (None, Decision::Allow),
            (Some("same-origin"), Decision::Allow),
            (Some("none"), Decision::Allow),
            (Some("same-site"), Decision::ForgedLogin),
            (Some("cross-site"), Decision::ForgedLogin),
        ] {
            let presented = Presented { host: Some("localhost"), fetch_site: site, ..Presented::default() };
            let decide = |purpose| policy(Some(TOKEN), false).decide(purpose, &presented, now());
            assert_eq!((decide(Purpose::Login), decide(Purpose::Asset)), (expected, Decision::Allow), "{site:?}");
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
                access.policy().decide(Purpose::Login, &presented, now()),
                access.policy().decide(Purpose::Action, &with, now()),
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
