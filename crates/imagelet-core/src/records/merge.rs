//! Merges one more pull into a record (`docs/spec/pull.md §8.5`); pure functions.

use super::file::{ImageAccess, PulledRecord};

/// Adds the credentials that opened the image under a name. Returns whether the record changed.
pub(super) fn merge(record: &mut PulledRecord, name: &str, access: &ImageAccess) -> bool {
    if *access == ImageAccess::default() {
        return false;
    }
    let Some(entry) = record.mapping.get_mut(name) else {
        record.mapping.insert(name.to_owned(), access.clone());
        return true;
    };
    if entry.node_pods_accessible {
        return false;
    }
    if access.node_pods_accessible {
        *entry = ImageAccess { node_pods_accessible: true, ..ImageAccess::default() };
        return true;
    }
    if access.kubernetes_secrets.is_empty() { merge_accounts(entry, access) } else { merge_secrets(entry, access) }
}

fn merge_secrets(entry: &mut ImageAccess, access: &ImageAccess) -> bool {
    let mut changed = false;
    for secret in &access.kubernetes_secrets {
        let known = entry.kubernetes_secrets.iter_mut().find(|known| known.object() == secret.object());
        match known {
            Some(known) if known.credential_hash == secret.credential_hash => continue,
            Some(known) => known.credential_hash.clone_from(&secret.credential_hash),
            None => entry.kubernetes_secrets.push(secret.clone()),
        }
        changed = true;
    }
    if changed {
        entry.kubernetes_secrets.sort_by(|a, b| a.object().cmp(&b.object()));
    }
    changed
}

fn merge_accounts(entry: &mut ImageAccess, access: &ImageAccess) -> bool {
    let mut changed = false;
    for account in &access.kubernetes_service_accounts {
        if !entry.kubernetes_service_accounts.contains(account) {
            entry.kubernetes_service_accounts.push(account.clone());
            changed = true;
        }
    }
    if changed {
        entry
            .kubernetes_service_accounts
            .sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
    }
    changed
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::vectors;

    use super::*;

    #[test]
    fn every_merge_vector_holds() {
        let cases = vectors("pull-records-merge.json");
        for case in &cases {
            let (input, expected) = (&case["input"], &case["expected"]);
            let mapping = |value: &serde_json::Value| {
                serde_json::from_value::<Option<_>>(value.clone()).expect("a mapping").unwrap_or_default()
            };
            let mut record = PulledRecord { mapping: mapping(&input["existing_mapping"]), ..PulledRecord::default() };
            let access: Option<ImageAccess> = serde_json::from_value(input["new_credentials"].clone()).expect("whose");
            let changed =
                merge(&mut record, input["mapping_key"].as_str().expect("a name"), &access.unwrap_or_default());
            assert_eq!(Some(changed), expected["changed"].as_bool(), "{}", case["name"]);
            // That a changed record is written with its time is covered by another vector.
            assert_eq!(Some(changed), expected["last_updated_time_bumped"].as_bool(), "{}", case["name"]);
            assert_eq!(record.mapping, mapping(&expected["mapping"]), "{}", case["name"]);
        }
        assert_eq!(cases.len(), 25);
    }
}
