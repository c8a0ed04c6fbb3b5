//! Validates the provider configuration with the kubelet's error texts and order (`docs/spec/pull.md §7.2`).

use std::collections::BTreeSet;

use super::{
    super::registry_match::complaint,
    config::{ProviderConfig, ProviderEntry, TokenAttributes},
};
use crate::text::{aggregate, quoted};

const API_WITH_TOKENS: &str = "credentialprovider.kubelet.k8s.io/v1";
const API_VERSIONS: [&str; 3] =
    [API_WITH_TOKENS, "credentialprovider.kubelet.k8s.io/v1alpha1", "credentialprovider.kubelet.k8s.io/v1beta1"];
const NAME_LENGTH_MAX: usize = 63;
const PREFIX_LENGTH_MAX: usize = 253;

/// Checks all rules. `with_tokens`: the feature gate `KubeletServiceAccountTokenForCredentialProviders` is on.
pub(super) fn check(config: &ProviderConfig, with_tokens: bool) -> Result<(), String> {
    let mut findings = Vec::new();
    if config.providers.is_empty() {
        findings.push("providers: Required value: at least 1 item in plugins is required".to_owned());
    }
    let mut names = BTreeSet::new();
    for entry in &config.providers {
        check_name(entry, &mut names, &mut findings);
        check_api_version(&entry.api_version, &mut findings);
        check_patterns(&entry.match_images, &mut findings);
        check_duration(entry, &mut findings);
        if let Some(tokens) = &entry.token_attributes {
            check_tokens(tokens, &entry.api_version, with_tokens, &mut findings);
        }
    }
    if findings.is_empty() { Ok(()) } else { Err(aggregate(&findings)) }
}

fn check_name<'a>(entry: &'a ProviderEntry, names: &mut BTreeSet<&'a str>, findings: &mut Vec<String>) {
    let name = entry.name.as_str();
    let mut refuse = |why: &str| findings.push(format!("providers.name: Invalid value: {}: {why}", quoted(name)));
    for (is_wrong, why) in [
        (name.contains('/'), "provider name cannot contain '/'"),
        (name.contains(' '), "provider name cannot contain spaces"),
        (name == ".", "provider name cannot be '.'"),
        (name == "..", "provider name cannot be '..'"),
    ] {
        if is_wrong {
            refuse(why);
        }
    }
    if !names.insert(name) {
        findings.push(format!("providers.name: Duplicate value: {}", quoted(name)));
    }
}

fn check_api_version(version: &str, findings: &mut Vec<String>) {
    if version.is_empty() {
        findings.push("providers.apiVersion: Required value".to_owned());
    } else if !API_VERSIONS.contains(&version) {
        findings.push(format!("providers.apiVersion: {}", unsupported(version, &API_VERSIONS)));
    }
}

fn check_patterns(patterns: &[String], findings: &mut Vec<String>) {
    if patterns.is_empty() {
        findings.push("providers.matchImages: Required value: at least 1 item in matchImages is required".to_owned());
    }
    for pattern in patterns {
        if let Some(error) = complaint(pattern) {
            let pattern = quoted(pattern);
            findings.push(format!("providers.matchImages: Invalid value: {pattern}: match image is invalid: {error}"));
        }
    }
}

fn check_duration(entry: &ProviderEntry, findings: &mut Vec<String>) {
    const FIELD: &str = "providers.defaultCacheDuration";
    match entry.default_cache_duration {
        None => findings.push(format!("{FIELD}: Required value")),
        Some(negative) if negative.0 < 0 => {
            findings.push(format!("{FIELD}: Invalid value: \"{negative}\": must be greater than or equal to 0"));
        }
        Some(_) => {}
    }
}

fn check_tokens(tokens: &TokenAttributes, api_version: &str, with_tokens: bool, findings: &mut Vec<String>) {
    const PATH: &str = "providers.tokenAttributes";
    if !with_tokens {
        findings.push(format!(
            "{PATH}: Forbidden: tokenAttributes is not supported when \
             KubeletServiceAccountTokenForCredentialProviders feature gate is disabled"
        ));
    }
    if tokens.audience.is_empty() {
        findings.push(format!("{PATH}.serviceAccountTokenAudience: Required value"));
    }
    if tokens.require_service_account.is_none() {
        findings.push(format!("{PATH}.requireServiceAccount: Required value"));
    }
    if api_version != API_WITH_TOKENS {
        findings
            .push(format!("{PATH}: Forbidden: tokenAttributes is only supported for {API_WITH_TOKENS} API version"));
    }
    if tokens.require_service_account == Some(false) && !tokens.required_annotations.is_empty() {
        findings.push(format!(
            "{PATH}.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when \
             requiredServiceAccountAnnotationKeys is set"
        ));
    }
    let required = check_annotations(&tokens.required_annotations, "requiredServiceAccountAnnotationKeys", findings);
    let optional = check_annotations(&tokens.optional_annotations, "optionalServiceAccountAnnotationKeys", findings);
    let both: Vec<String> = required.intersection(&optional).map(|key| quoted(key)).collect();
    if !both.is_empty() {
        findings.push(format!(
            "{PATH}: Invalid value: [{}]: annotation keys cannot be both required and optional",
            both.join(",")
        ));
    }
    match tokens.cache_type.as_str() {
        "ServiceAccount" | "Token" => {}
        "" => findings.push(format!(
            "{PATH}.cacheType: Required value: cacheType is required to be set when tokenAttributes is specified. \
             Supported values are: ServiceAccount, Token"
        )),
        other => findings.push(format!("{PATH}.cacheType: {}", unsupported(other, &["ServiceAccount", "Token"]))),
    }
}

fn check_annotations<'a>(keys: &'a [String], field: &str, findings: &mut Vec<String>) -> BTreeSet<&'a String> {
    let mut known = BTreeSet::new();
    for key in keys {
        for error in qualified_name_errors(&key.to_lowercase()) {
            findings.push(format!("providers.tokenAttributes.{field}: Invalid value: {}: {error}", quoted(key)));
        }
        if !known.insert(key) {
            findings.push(format!("providers.tokenAttributes.{field}: Duplicate value: {}", quoted(key)));
        }
    }
    known
}

fn unsupported(value: &str, supported: &[&str]) -> String {
    let supported: Vec<String> = supported.iter().map(|text| quoted(text)).collect();
    format!("Unsupported value: {}: supported values: {}", quoted(value), supported.join(", "))
}

/// What is wrong with a text as a qualified name of Kubernetes: `[prefix/]name`.
fn qualified_name_errors(text: &str) -> Vec<String> {
    const NAME_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                             alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for \
                             validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    const PREFIX_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' \
                               or '.', and must start and end with an alphanumeric character (e.g. 'example.com', \
                               regex used for validation is \
                               '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    let mut errors = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                if prefix.len() > PREFIX_LENGTH_MAX {
                    errors.push(format!("prefix part must be no more than {PREFIX_LENGTH_MAX} bytes"));
                }
                if !is_subdomain(prefix) {
                    errors.push(format!("prefix part {PREFIX_RULE}"));
                }
            }
            name
        }
        _ => {
            return vec![format!(
                "a qualified name {NAME_RULE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > NAME_LENGTH_MAX {
        errors.push(format!("name part must be no more than {NAME_LENGTH_MAX} bytes"));
    }
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let bytes = name.as_bytes();
    if !edge(bytes.first()) || !edge(bytes.last()) || !bytes.iter().all(|byte| inner(*byte)) {
        errors.push(format!("name part {NAME_RULE}"));
    }
    errors
}

fn is_subdomain(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    text.split('.').map(str::as_bytes).all(|label| edge(label.first()) && edge(label.last()) && label.iter().all(inner))
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_qualified_name_may_be_as_long_as_its_bounds_and_no_label_ends_with_a_dash() {
        let prefix = |length: usize| format!("{}/name", "a".repeat(length));
        assert!(qualified_name_errors(&prefix(PREFIX_LENGTH_MAX)).is_empty());
        assert_eq!(qualified_name_errors(&prefix(PREFIX_LENGTH_MAX + 1)).len(), 1);
        assert!(qualified_name_errors(&"n".repeat(NAME_LENGTH_MAX)).is_empty());
        assert_eq!(qualified_name_errors(&"n".repeat(NAME_LENGTH_MAX + 1)).len(), 1);
        for (text, expected) in [("a.b-c", true), ("a-.b", false), ("-a.b", false), ("a..b", false)] {
            assert_eq!(is_subdomain(text), expected, "{text}");
        }
    }

    fn entry(value: &Value) -> ProviderEntry {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts = |value: &Value| -> Vec<String> {
            value.as_array().map(|list| list.iter().map(text).collect()).unwrap_or_default()
        };
        let tokens = &value["tokenAttributes"];
        ProviderEntry {
            name: text(&value["name"]),
            match_images: texts(&value["matchImages"]),
            default_cache_duration: value["defaultCacheDuration"].as_str().map(|text| text.parse().unwrap()),
            api_version: text(&value["apiVersion"]),
            token_attributes: tokens.as_object().map(|_| TokenAttributes {
                audience: text(&tokens["serviceAccountTokenAudience"]),
                cache_type: text(&tokens["cacheType"]),
                require_service_account: tokens["requireServiceAccount"].as_bool(),
                required_annotations: texts(&tokens["requiredServiceAccountAnnotationKeys"]),
                optional_annotations: texts(&tokens["optionalServiceAccountAnnotationKeys"]),
            }),
            ..ProviderEntry::default()
        }
    }

    #[test]
    fn every_validation_vector_holds() {
        let cases = vectors("pull-credential-provider-config-validate.json");
        for case in &cases {
            let providers = case["input"]["providers"].as_array().expect("providers").iter().map(entry).collect();
            let config = ProviderConfig { providers, hash: String::new() };
            let tokens = case["input"]["feature_service_account_token"].as_bool().expect("a gate");
            let error = check(&config, tokens).err();
            assert_eq!(error.as_deref(), case["expected"]["error"].as_str(), "{}", case["name"]);
        }
        assert_eq!(cases.len(), 27);
    }

    #[test]
    fn qualified_names_are_kubernetes() {
        for (name, errors) in [
            ("simple", 0),
            ("now-with-dashes/simple", 0),
            ("a.b/1-num.2_num", 0),
            ("", 2),
            ("/simple", 1),
            ("a/b/c", 1),
            ("a_b/c", 1),
            ("a/", 2),
            ("-a", 1),
            (&"x".repeat(64), 1),
            (&format!("{}/x", "x".repeat(254)), 1),
        ] {
            assert_eq!(qualified_name_errors(name).len(), errors, "{name}: {:?}", qualified_name_errors(name));
        }
    }
}
