//! Decides whether a client may use a present image (`docs/spec/pull.md §8.3, §8.4`); pure functions.

use std::time::Duration;

use super::{
    KubeletRecords,
    file::{ImageAccess, PulledRecord, RecordedSecret},
};
use crate::text::PlainError;
use crate::{credentials::ObjectIdentity, image::trim_tag_and_digest};

const SECRETS_MAX: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordsSettings {
    pub policy: VerificationPolicy,
    pub guard: Guard,
    /// A record expires if it was not updated for this time. `None`: records do not expire.
    pub age_max: Option<Duration>,
    /// The records of the node's kubelet: an image that it pulled is not preloaded. `None`: they are not read.
    pub kubelet: Option<KubeletRecords>,
}

/// The names of an image that require credentials while an intent is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Only the name in the intent, as in the kubelet. After a crash during a pull, all clients may use the image under
    /// all other names. Pruning compares only times in whole seconds.
    Spelling,
    Image,
}

impl RecordsSettings {
    pub fn new(policy: VerificationPolicy) -> Self {
        Self { policy, guard: Guard::Image, age_max: None, kubelet: None }
    }
}

impl From<VerificationPolicy> for RecordsSettings {
    fn from(policy: VerificationPolicy) -> Self {
        Self::new(policy)
    }
}

/// The present images for which a client must present credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerificationPolicy {
    NeverVerify,
    /// Clients must present credentials for pulled images, but not for preloaded images.
    NeverVerifyPreloadedImages,
    NeverVerifyAllowlistedImages(Allowlist),
    AlwaysVerify,
}

/// The image names that every client may use: exact names, and prefixes that end in `/*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowlist {
    exact: Vec<String>,
    prefixes: Vec<String>,
}

impl Allowlist {
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, PlainError> {
        let mut list = Self::default();
        for pattern in patterns {
            let wrong = |why: &str| Err(PlainError(format!("{why}: {pattern}")));
            let prefix = pattern.strip_suffix('*').filter(|prefix| prefix.ends_with('/'));
            let text = prefix.unwrap_or(pattern);
            if pattern.trim() != pattern {
                return wrong("leading/trailing spaces are not allowed");
            }
            if text.is_empty() {
                return wrong("the supplied pattern is too short");
            }
            if text.contains('*') {
                return wrong("not a valid wildcard pattern, only patterns ending with '/*' are allowed");
            }
            match prefix {
                Some("/") => return Err(PlainError("at least registry hostname is required".to_owned())),
                Some(prefix) => list.prefixes.push(prefix.to_owned()),
                None => {
                    let failed = |error| PlainError(format!("failed to parse as an image name: {error}"));
                    let name = trim_tag_and_digest(pattern).map_err(failed)?;
                    if name != pattern {
                        return wrong("neither tag nor digest is accepted in an image reference");
                    }
                    list.exact.push(pattern.to_owned());
                }
            }
        }
        Ok(list)
    }

    fn contains(&self, image: &str) -> bool {
        let name = trim_tag_and_digest(image).unwrap_or(image);
        self.exact.iter().any(|exact| exact == name) || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

impl VerificationPolicy {
    fn wants_credentials(&self, image: &str, pulled: bool) -> bool {
        match self {
            Self::NeverVerify => false,
            Self::NeverVerifyPreloadedImages => pulled,
            Self::NeverVerifyAllowlistedImages(list) => !list.contains(image),
            Self::AlwaysVerify => true,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessProof {
    pub(crate) secrets: Vec<RecordedSecret>,
    pub(crate) service_account: Option<ObjectIdentity>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckResult {
    PolicyAllowed,
    RecordFound,
    MustAuthenticate,
    Error,
}

impl CheckResult {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PolicyAllowed => "credentialPolicyAllowed",
            Self::RecordFound => "credentialRecordFound",
            Self::MustAuthenticate => "mustAuthenticate",
            Self::Error => "error",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) allowed: bool,
    pub(crate) result: Option<CheckResult>,
    pub(crate) learned: Option<ImageAccess>,
}

impl Verdict {
    const fn new(allowed: bool, result: CheckResult) -> Self {
        Self { allowed, result: Some(result), learned: None }
    }

    const POLICY: Self = Self::new(true, CheckResult::PolicyAllowed);
    const FOUND: Self = Self::new(true, CheckResult::RecordFound);
    const AUTHENTICATE: Self = Self::new(false, CheckResult::MustAuthenticate);
    pub(super) const ABSENT: Self = Self { allowed: false, result: None, learned: None };
    /// An unreadable record rejects every client.
    pub(super) const UNREADABLE: Self = Self::new(false, CheckResult::Error);
}

/// `intended`: a pull with an open intent may have fetched the image. `proof` is called only if it is needed.
pub(super) fn judge<E>(
    policy: &VerificationPolicy,
    image: &str,
    record: Option<&PulledRecord>,
    intended: bool,
    proof: impl FnOnce() -> Result<AccessProof, E>,
) -> Result<Verdict, E> {
    if !policy.wants_credentials(image, record.is_some() || intended) {
        return Ok(Verdict::POLICY);
    }
    let Some(record) = record else { return Ok(Verdict::AUTHENTICATE) };
    let Ok(name) = trim_tag_and_digest(image) else { return Ok(Verdict::UNREADABLE) };
    let Some(access) = record.mapping.get(name) else { return Ok(Verdict::AUTHENTICATE) };
    if access.node_pods_accessible {
        return Ok(Verdict::FOUND);
    }
    if access.kubernetes_secrets.is_empty() && access.kubernetes_service_accounts.is_empty() {
        return Ok(Verdict::AUTHENTICATE);
    }
    let proof = proof()?;
    if let Some(verdict) = judge_secrets(access, &proof.secrets) {
        return Ok(verdict);
    }
    let known = |account| access.kubernetes_service_accounts.contains(account);
    Ok(if proof.service_account.as_ref().is_some_and(known) { Verdict::FOUND } else { Verdict::AUTHENTICATE })
}

fn judge_secrets(access: &ImageAccess, shown: &[RecordedSecret]) -> Option<Verdict> {
    let room = access.kubernetes_secrets.len() < SECRETS_MAX;
    for secret in shown {
        for known in &access.kubernetes_secrets {
            let same_credential = !known.credential_hash.is_empty() && known.credential_hash == secret.credential_hash;
            let same_object = known.object() == secret.object();
            let is_news = room && !(same_object && known.credential_hash == secret.credential_hash);
            let learned =
                is_news.then(|| ImageAccess { kubernetes_secrets: vec![secret.clone()], ..ImageAccess::default() });
            match (same_credential, same_object) {
                (true, true) => return Some(Verdict::FOUND),
                (true, false) => return Some(Verdict { learned, ..Verdict::FOUND }),
                (false, true) if room => return Some(Verdict { learned, ..Verdict::FOUND }),
                (false, _) => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;

    #[test]
    fn every_allowlist_vector_holds() {
        let cases = vectors("pull-allowlist.json");
        for case in &cases {
            let (input, expected) = (&case["input"], &case["expected"]);
            if let Some(pattern) = input["pattern"].as_str() {
                match Allowlist::new([pattern]) {
                    Err(error) => assert_eq!(Some(error.to_string().as_str()), expected["error"].as_str()),
                    Ok(list) => {
                        assert!(expected["error"].is_null(), "{pattern:?} is accepted");
                        let kept = if expected["prefix_match"] == true { &list.prefixes } else { &list.exact };
                        assert_eq!(kept.first().map(String::as_str), expected["stored_as"].as_str());
                    }
                }
                continue;
            }
            let patterns: Vec<String> = serde_json::from_value(input["allowlist"].clone()).unwrap();
            let list = Allowlist::new(patterns.iter().map(String::as_str)).unwrap();
            let policy = VerificationPolicy::NeverVerifyAllowlistedImages(list);
            let image = input["image"].as_str().unwrap();
            let verifies = policy.wants_credentials(image, true);
            assert_eq!(Some(verifies), expected["require_verification"].as_bool(), "{patterns:?} {image}");
        }
        assert_eq!(cases.len(), 58);
    }

    #[test]
    fn every_vector_of_collections_on_allowlists_holds() {
        let cases = vectors("gc-allowlist-patterns.json");
        assert_eq!(cases.len(), 22);
        for case in &cases {
            let (name, input, expected) = (&case["name"], &case["input"], &case["expected"]);
            let patterns: Vec<String> = serde_json::from_value(input["allowlist"].clone()).unwrap();
            let list = Allowlist::new(patterns.iter().map(String::as_str));
            assert_eq!(expected["error"], list.is_err(), "{name}");
            let text = list.as_ref().err().map(ToString::to_string);
            assert_eq!(text.as_deref(), expected["error_text"].as_str(), "{name}");
            // Under this policy it does not matter whether this manager pulled the image.
            let pulled = input["records_exist"].as_bool().unwrap();
            let wants = list.ok().map(|list| {
                let policy = VerificationPolicy::NeverVerifyAllowlistedImages(list);
                policy.wants_credentials(input["image"].as_str().unwrap(), pulled)
            });
            assert_eq!(wants, expected["verification_required"].as_bool(), "{name}");
        }
    }

    #[test]
    fn patterns_are_refused_by_the_first_rule_they_break() {
        for (pattern, message) in [
            (" a/*", "leading/trailing spaces are not allowed:  a/*"),
            ("", "the supplied pattern is too short: "),
            ("*", "not a valid wildcard pattern, only patterns ending with '/*' are allowed: *"),
            ("/*", "at least registry hostname is required"),
            (
                "test.io/test/image1:tagged",
                "neither tag nor digest is accepted in an image reference: test.io/test/image1:tagged",
            ),
        ] {
            assert_eq!(Allowlist::new([pattern]).unwrap_err().to_string(), message);
        }
        assert!(Allowlist::new(["test.io/Upper"]).is_err());
    }

    #[test]
    fn a_listed_image_is_matched_by_name_alone() {
        let list = Allowlist::new(["test.io/test/image1", "docker.io/library/*"]).unwrap();
        assert!(list.contains("test.io/test/image1:any"));
        assert!(list.contains("docker.io/library/ubuntu"));
        assert!(!list.contains("ubuntu"));
        assert!(!list.contains("test.io/test/image1x"));
    }
}
