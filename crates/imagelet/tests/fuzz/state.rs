//! Files of the state directory, as damage or another program may leave them: what is read is written as it was read, and a
//! damaged line ends nothing.

use std::{fs, path::Path};

use imagelet_core::{
    audit_log::AuditLog,
    image::Digest,
    inventory::rewritten_ledger,
    records::{rewritten_intent, rewritten_record},
};

use super::{
    assert_short_text,
    mutation::{self, Dice},
};

const RECENT_MAX: usize = 50;
const RECORDS: [&[u8]; 12] = [
    b"\"kind\":\"ImagePulledRecord\",",
    b"\"kind\":\"ImagePullIntent\",",
    b"\"apiVersion\":\"kubelet.config.k8s.io/v1alpha1\",",
    b"\"lastUpdatedTime\":\"2026-01-02T03:04:05Z\",",
    b"\"lastUpdatedTime\":null,",
    b"\"imageRef\":\"sha256:1\",",
    b"\"credentialMapping\":{\"a.example/app\":{",
    b"\"nodePodsAccessible\":true",
    b"\"kubernetesSecrets\":[{\"uid\":\"u\",\"namespace\":\"n\",\"name\":\"s\",\"credentialHash\":\"h\"}]",
    b"image: a\n",
    b"&a [*a, *a]",
    b"[[[[[[[[",
];
const LEDGER: [&[u8]; 10] = [
    b"\"version\":2,",
    b"\"containers\":1,",
    b"\"secs_since_epoch\":18446744073709551615,",
    b"\"nanos_since_epoch\":4294967295",
    b"\"released_at\":null,",
    b"\"last_pass\":null,",
    b"18446744073709551615",
    b"-1",
    b"1e999",
    b"[[[[[[[[",
];
const DECISIONS: [&[u8]; 10] = [
    b"\n",
    b"\n{\"lost\":{\"at\":\"2026-01-02T03:04:05Z\",\"count\":18446744073709551615,\"error\":\"\"}}\n",
    b"\"code\":\"pulled\",",
    b"\"code\":\"removing\",",
    b"\"at\":\"9999-12-31T23:59:59Z\",",
    b"\"at\":\"-009999-01-01T00:00:00Z\",",
    b"\"bytes\":18446744073709551615,",
    b"\"leftOut\":18446744073709551615,",
    b"\"keys\":[\"sha256:1\"],",
    b"[[[[[[[[",
];

/// Reads the bytes as a pull record and as the intent of a pull.
pub(crate) fn check_records(bytes: &[u8], _: &Path) {
    for rewrite in [rewritten_record, rewritten_intent] {
        if let Some(written) = rewrite(bytes) {
            assert_eq!(rewrite(&written).as_ref(), Some(&written), "written as it was read");
        }
    }
}

/// Reads the bytes as the ledger.
pub(crate) fn check_ledger(bytes: &[u8], _: &Path) {
    match rewritten_ledger(bytes) {
        Ok(written) => assert_eq!(rewritten_ledger(&written).as_ref(), Ok(&written), "written as it was read"),
        Err(why) => assert_short_text(&why),
    }
}

/// Reads the bytes as the only file of the log.
pub(crate) fn check_decisions(bytes: &[u8], folder: &Path) {
    let directory = folder.join("decisions");
    fs::create_dir_all(&directory).expect("the folder is the check's own");
    fs::write(directory.join("0000000001.jsonl"), bytes).expect("the folder is the check's own");
    let log = AuditLog::read_only(&directory);
    for text in ["app:v1", "sha256:1"] {
        let history = log.history(text).expect("it is read to its end");
        let lines = bytes.split(|byte| *byte == b'\n').count();
        assert!(history.damaged <= lines as u64, "{}", history.damaged);
    }
    assert!(log.recent(RECENT_MAX).expect("it is read to its end").len() <= RECENT_MAX);
}

pub(crate) fn mutate_records(bytes: &mut Vec<u8>, dice: &mut Dice) {
    mutation::change(bytes, dice, &RECORDS);
}

pub(crate) fn mutate_ledger(bytes: &mut Vec<u8>, dice: &mut Dice) {
    mutation::change(bytes, dice, &LEDGER);
}

pub(crate) fn mutate_decisions(bytes: &mut Vec<u8>, dice: &mut Dice) {
    mutation::change(bytes, dice, &DECISIONS);
}

/// Writes the digest of the second line into the first one, which has the length of a digest.
pub(crate) fn repair_ledger(bytes: &mut [u8]) {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return };
    let (first, body) = bytes.split_at_mut(end);
    let digest = Digest::of(&body[1..]);
    if first.len() == digest.as_str().len() {
        first.copy_from_slice(digest.as_str().as_bytes());
    }
}
