//! Merges the access of one more pull into a record (`docs/spec/pull.md §8.5`); pure functions.

use super::file::{ImageAccess, PulledRecord, RecordedSecret};
use crate::credentials::ObjectIdentity;

/// Adds the credentials that opened the image under a name. Returns whether this changed the record.
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
    let (secrets, accounts) = (&access.kubernetes_secrets, &access.kubernetes_service_accounts);
    if secrets.is_empty() {
        merge_sorted(&mut entry.kubernetes_service_accounts, accounts, ObjectIdentity::sorted_by)
    } else {
        merge_sorted(&mut entry.kubernetes_secrets, secrets, RecordedSecret::object)
    }
}

/// Adds items to a sorted list, or replaces those with the same key `object`. Returns whether this changed the list.
fn merge_sorted<T: Clone + PartialEq>(known: &mut Vec<T>, items: &[T], object: fn(&T) -> (&str, &str, &str)) -> bool {
    if items.iter().all(|item| known.contains(item)) {
        return false;
    }
    for item in items {
        known.retain(|known| object(known) != object(item));
        known.push(item.clone());
    }
    known.sort_by(|a, b| object(a).cmp(&object(b)));
    true
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
