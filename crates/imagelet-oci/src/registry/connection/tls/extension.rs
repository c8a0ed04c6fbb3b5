//! The critical extension for which a certificate is refused: RFC 5280 demands it of one that a client does not know, and
//! webpki does not say which it is.

use std::sync::Arc;

use rustls::{CertificateError, OtherError, pki_types::CertificateDer};

use crate::manifest::printable;

/// Below `2.5.29`, those that webpki reads.
const READ: [u64; 6] = [15, 17, 19, 30, 31, 37];
const NAMES: [(&str, &str); 12] = [
    ("2.5.29.9", "subject directory attributes"),
    ("2.5.29.14", "subject key identifier"),
    ("2.5.29.16", "private key usage period"),
    ("2.5.29.18", "issuer alternative name"),
    ("2.5.29.32", "certificate policies"),
    ("2.5.29.33", "policy mappings"),
    ("2.5.29.35", "authority key identifier"),
    ("2.5.29.36", "policy constraints"),
    ("2.5.29.54", "inhibit any policy"),
    ("1.3.6.1.5.5.7.1.1", "authority information access"),
    ("1.3.6.1.5.5.7.1.24", "TLS feature"),
    ("2.16.840.1.113730.1.1", "Netscape certificate type"),
];
const SEQUENCE: u8 = 0x30;
const OBJECT_ID: u8 = 0x06;
const BOOLEAN: u8 = 0x01;
/// `[3]` of the signed part of a certificate.
const EXTENSIONS: u8 = 0xa3;

/// Why webpki does not read a certificate of the chain.
#[derive(Debug, thiserror::Error)]
#[error("{holder} has the critical extension {extension}, which this client does not know")]
pub(crate) struct UnknownExtension {
    holder: &'static str,
    extension: String,
}

/// The same error, with the extension that it is about.
pub(super) fn named(
    error: rustls::Error,
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> rustls::Error {
    let rustls::Error::InvalidCertificate(CertificateError::Other(other)) = &error else { return error };
    if !matches!(other.0.downcast_ref(), Some(webpki::Error::UnsupportedCriticalExtension)) {
        return error;
    }
    let own = unknown_critical(end_entity).map(|extension| ("its certificate", extension));
    let above = || intermediates.iter().find_map(|it| unknown_critical(it));
    let found = own.or_else(|| above().map(|extension| ("the certificate of its authority", extension)));
    let Some((holder, extension)) = found else { return error };
    CertificateError::Other(OtherError(Arc::new(UnknownExtension { holder, extension }))).into()
}

/// Number and name of the first critical extension that webpki does not read.
fn unknown_critical(certificate: &[u8]) -> Option<String> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut fields, _) = element(certificate)?;
    let mut list = loop {
        let (tag, field, rest) = element(fields)?;
        if tag == EXTENSIONS {
            break element(field)?.1;
        }
        fields = rest;
    };
    while let Some((SEQUENCE, extension, rest)) = element(list) {
        list = rest;
        let (OBJECT_ID, id, value) = element(extension)? else { return None };
        let numbers = numbers(id)?;
        let is_critical = matches!(element(value), Some((BOOLEAN, [flag], _)) if *flag != 0);
        let is_read = matches!(numbers[..], [2, 5, 29, last] if READ.contains(&last));
        if is_critical && !is_read {
            let number = numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(".");
            let name = NAMES.iter().find(|(known, _)| *known == number).map(|(_, name)| *name);
            let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
            return Some(format!("`{}`{name}", printable(&number)));
        }
    }
    None
}

/// Tag and content of the first element of DER, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, der) = der.split_first()?;
    let (&first, der) = der.split_first()?;
    let (length, der) = match first {
        0..=0x7f => (usize::from(first), der),
        0x81..=0x84 => {
            let (digits, der) = der.split_at_checked(usize::from(first - 0x80))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), der)
        }
        _ => return None,
    };
    let (content, rest) = der.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// The numbers of an object identifier.
fn numbers(id: &[u8]) -> Option<Vec<u64>> {
    let mut numbers = Vec::new();
    let mut number: u64 = 0;
    for byte in id {
        number = number.checked_mul(128)? | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            numbers.push(std::mem::take(&mut number));
        }
    }
    let first = *numbers.first()?;
    let root = (first / 40).min(2);
    numbers[0] = first - 40 * root;
    numbers.insert(0, root);
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CustomExtension, KeyPair};

    use super::*;

    fn certificate(extensions: &[(&[u64], bool)]) -> CertificateDer<'static> {
        let mut parameters = CertificateParams::new(["a.test".to_owned()]).unwrap();
        for (id, is_critical) in extensions {
            let mut extension = CustomExtension::from_oid_content(id, vec![5, 0]);
            extension.set_criticality(*is_critical);
            parameters.custom_extensions.push(extension);
        }
        parameters.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn the_first_critical_extension_that_is_not_read_is_named_by_its_number_and_name() {
        for (extensions, found) in [
            (&[][..], None),
            (&[(&[1, 2, 3, 4][..], false)], None),
            (&[(&[1, 2, 3, 4], true)], Some("`1.2.3.4`")),
            (&[(&[2, 5, 29, 15], true), (&[2, 5, 29, 32], true)], Some("`2.5.29.32` (certificate policies)")),
            (&[(&[2, 999, 1 << 40], true)], Some("`2.999.1099511627776`")),
        ] {
            assert_eq!(unknown_critical(&certificate(extensions)).as_deref(), found, "{extensions:?}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_extension() {
        let whole = certificate(&[(&[1, 2, 3, 4], true)]);
        for length in 0..whole.len() {
            assert_eq!(unknown_critical(&whole[..length]), None, "{length}");
        }
        for bytes in [&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff][..], &[0x30, 0x80, 0, 0], &[0x30, 0x85, 1, 1, 1, 1, 1]] {
            assert_eq!(unknown_critical(bytes), None);
        }
    }
}
