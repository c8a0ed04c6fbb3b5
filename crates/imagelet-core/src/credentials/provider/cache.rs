//! The response cache of one plugin (`docs/spec/pull.md §7.5`). The caller passes the time.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use super::plugin_protocol::CacheKeyType;
use crate::{
    bounded_map::make_room,
    credentials::{DockerConfig, ObjectIdentity, Secret, registry_key},
    image::Digest,
};

const GLOBAL: &str = "<global>";
const SWEPT_EVERY: Duration = Duration::from_mins(15);
/// Per plugin. The kubelet has no limit.
const ENTRIES_MAX: usize = 10_000;

/// A service account as sent to a plugin. `Debug` hides the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PluginAccount {
    pub(super) identity: ObjectIdentity,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) token: Secret,
    /// Whether a cached response is valid only for this token.
    pub(super) is_per_token: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CacheKey(Vec<u8>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a part of the cache key has {0} bytes, more than 65535")]
pub(super) struct KeyError(usize);

#[derive(Default)]
pub(super) struct Cache {
    entries: HashMap<CacheKey, CachedAnswer>,
    swept: Option<Instant>,
}

struct CachedAnswer {
    auth: DockerConfig,
    expires: Instant,
}

impl CacheKeyType {
    pub(super) fn base(self, repository: &str) -> &str {
        match self {
            Self::Image => repository,
            Self::Registry => registry_key(repository),
            Self::Global => GLOBAL,
        }
    }
}

impl CacheKey {
    pub(super) fn new(base: &str, service_account: Option<&PluginAccount>) -> Result<Self, KeyError> {
        let account =
            service_account.map(|account| account.cache_key(&account.token_hash())).transpose()?.unwrap_or_default();
        Self::from_parts(base, &account)
    }

    fn from_parts(base: &str, service_account: &[u8]) -> Result<Self, KeyError> {
        joined([base.as_bytes(), service_account]).map(Self)
    }

    pub(super) fn for_run(base: &str, service_account: Option<&PluginAccount>) -> Result<Self, KeyError> {
        let Some(account) = service_account else { return Ok(Self(base.as_bytes().to_vec())) };
        let key = joined([base.as_bytes(), account.token_hash().as_bytes()])?;
        Ok(Self([key, account.annotations_key()?].concat()))
    }
}

impl PluginAccount {
    fn cache_key(&self, token_hash: &str) -> Result<Vec<u8>, KeyError> {
        let identity = [&self.identity.namespace, &self.identity.name, &self.identity.uid].map(String::as_bytes);
        let token = if self.is_per_token { joined([&b"token"[..], token_hash.as_bytes()])? } else { Vec::new() };
        Ok([joined(identity)?, self.annotations_key()?, token].concat())
    }

    fn annotations_key(&self) -> Result<Vec<u8>, KeyError> {
        let count = u32::try_from(self.annotations.len()).map_err(|_| KeyError(self.annotations.len()))?;
        let texts = self.annotations.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
        Ok([count.to_be_bytes().to_vec(), joined(texts)?].concat())
    }

    fn token_hash(&self) -> String {
        Digest::of(self.token.expose().as_bytes()).to_string()
    }
}

/// The parts, each after its length.
fn joined<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<u8>, KeyError> {
    let mut key = Vec::new();
    for part in parts {
        let length = u16::try_from(part.len()).map_err(|_| KeyError(part.len()))?;
        key.extend(length.to_be_bytes());
        key.extend(part);
    }
    Ok(key)
}

impl Cache {
    pub(super) fn find(&mut self, keys: &[CacheKey], now: Instant) -> Option<DockerConfig> {
        let swept = *self.swept.get_or_insert(now);
        if now.saturating_duration_since(swept) > SWEPT_EVERY {
            self.sweep(now);
        }
        for key in keys {
            match self.entries.get(key) {
                Some(entry) if now > entry.expires => drop(self.entries.remove(key)),
                Some(entry) => return Some(entry.auth.clone()),
                None => {}
            }
        }
        None
    }

    pub(super) fn keep(&mut self, key: CacheKey, auth: DockerConfig, good_for: Duration, now: Instant) {
        if good_for.is_zero() {
            return;
        }
        if self.entries.len() >= ENTRIES_MAX {
            self.sweep(now);
        }
        make_room(&mut self.entries, &key, ENTRIES_MAX, |entry| entry.expires);
        // If the clock cannot represent the time, the response expires after one year.
        let expires = now.checked_add(good_for).unwrap_or(now + Duration::from_hours(24 * 365));
        self.entries.insert(key, CachedAnswer { auth, expires });
    }

    fn sweep(&mut self, now: Instant) {
        self.entries.retain(|_, entry| now <= entry.expires);
        self.swept = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;
    use serde_json::Value;

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .filter_map(|digit| char::from_digit(digit.into(), 16))
            .collect()
    }

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn account_of(value: &Value) -> PluginAccount {
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        PluginAccount {
            identity: ObjectIdentity { namespace: text("namespace"), name: text("name"), uid: text("uid") },
            annotations: serde_json::from_value(value["annotations"].clone()).unwrap(),
            token: Secret::new(text("token")),
            is_per_token: value["cacheType"] == "Token",
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_cache_vector_holds() {
        let cases = vectors("pull-credential-provider-cache.json");
        for case in &cases {
            let (input, expected, name) = (&case["input"], &case["expected"], &case["name"]);
            if let Some(key) = expected["service_account_key_hex"].as_str() {
                let found = account_of(input).cache_key(input["token_hash"].as_str().expect("a hash"));
                assert_eq!(hex(&found.unwrap()), key, "{name}");
            } else if let Some(key) = expected["cache_key_hex"].as_str() {
                let found = if let Some(base) = input["base"].as_str() {
                    CacheKey::from_parts(base, &unhex(input["service_account_key_hex"].as_str().expect("a key")))
                } else {
                    let key_type = CacheKeyType::from_name(input["cacheKeyType"].as_str().expect("a type")).unwrap();
                    let account = input["service_account"].as_object().map(|_| account_of(&input["service_account"]));
                    CacheKey::new(key_type.base(input["image"].as_str().expect("an image")), account.as_ref())
                };
                assert_eq!(hex(&found.unwrap().0), key, "{name}");
            } else if let Some(key) = expected["singleflight_key_hex"].as_str() {
                let account = account_of(input);
                assert_eq!(account.token_hash(), expected["token_hash"].as_str().expect("a hash"));
                let found = CacheKey::for_run(input["image"].as_str().expect("an image"), Some(&account)).unwrap();
                assert_eq!(hex(&found.0), key, "{name}");
            } else if let Some(hit) = expected["hit"].as_bool() {
                let seconds = |field: &str| Duration::from_secs(input[field].as_u64().expect("a number"));
                let (mut cache, now) = (Cache::default(), Instant::now());
                let key = CacheKey::new("a.io/b", None).unwrap();
                let entry = CachedAnswer { auth: DockerConfig::default(), expires: now + seconds("expires_in_s") };
                cache.entries.insert(key.clone(), entry);
                let found = cache.find(std::slice::from_ref(&key), now + seconds("elapsed_s"));
                assert_eq!(found.is_some(), hit, "{name}");
                assert_eq!(cache.entries.len(), usize::from(hit), "an expired answer is dropped when touched");
            } else {
                let since = Duration::from_secs(input["seconds_since_last_purge"].as_u64().expect("a number"));
                assert_eq!(expected["expired_entries_purged_on_next_lookup"], true, "{name}");
                let (mut cache, now) = (Cache::default(), Instant::now());
                let [old, other] = ["old", "other"].map(|base| CacheKey::new(base, None).unwrap());
                cache.find(&[], now);
                cache.keep(old, DockerConfig::default(), Duration::from_secs(1), now);
                cache.find(std::slice::from_ref(&other), now + SWEPT_EVERY);
                assert_eq!(cache.entries.len(), 1, "it is not time yet");
                cache.find(&[other], now + since);
                assert_eq!(cache.entries.len(), 0, "{name}");
            }
        }
        assert_eq!(cases.len(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cache_is_bounded_and_drops_what_expires_soonest() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let key = |index: usize| CacheKey::new(&index.to_string(), None).unwrap();
        for index in 0..=ENTRIES_MAX {
            let good_for = Duration::from_secs(if index == 7 { 1 } else { 60 });
            cache.keep(key(index), DockerConfig::default(), good_for, now);
        }
        assert_eq!(cache.entries.len(), ENTRIES_MAX);
        assert!(cache.find(&[key(7)], now).is_none());
        assert!(cache.find(&[key(ENTRIES_MAX)], now).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_good_to_the_end_of_its_time() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let end = now + Duration::from_secs(1);
        cache.keep(CacheKey::new("a", None).unwrap(), DockerConfig::default(), Duration::from_secs(1), now);
        for (at, left) in [(end, 1), (end + Duration::from_nanos(1), 0)] {
            cache.sweep(at);
            assert_eq!(cache.entries.len(), left);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_good_for_no_time_is_not_kept_and_forever_is_bounded() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let key = CacheKey::new("a", None).unwrap();
        cache.keep(key.clone(), DockerConfig::default(), Duration::ZERO, now);
        assert_eq!(cache.entries.len(), 0);
        cache.keep(key.clone(), DockerConfig::default(), Duration::MAX, now);
        assert!(cache.find(&[key], now + Duration::from_hours(24)).is_some());
    }

    #[test]
    fn a_part_that_is_too_long_makes_no_key() {
        assert_eq!(CacheKey::new(&"x".repeat(65536), None), Err(KeyError(65536)));
        assert!(CacheKey::new(&"x".repeat(65535), None).is_ok());
    }
}
