//! Signatures of images: the policy file that requires them, and the check of the signatures that a registry has.
//!
//! This module uses no network: `registry/signatures` fetches the signatures of an image. A requirement of a known but
//! unsupported type rejects each image to which it applies.

pub(crate) mod payload;
mod policy;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ED25519, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, VerificationAlgorithm,
};
use imagelet_core::image::{Digest, Reference, trim_tag_and_digest};
use rustls::pki_types::{SubjectPublicKeyInfoDer, pem::PemObject as _};

pub(crate) use self::policy::{KeySource, POLICY_BYTES_MAX, Requirement, Rule, SignaturePolicy, Transport};
use crate::manifest::printable;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttachedSignature {
    pub(crate) subject: Digest,
    pub(crate) payload: Vec<u8>,
    pub(crate) signature: Vec<u8>,
}

/// Checks that at least one signature is by one of `keys`, for this image, and for a name that `identity` accepts.
pub(crate) fn check(
    reference: &Reference,
    keys: &PublicKeys,
    identity: Identity,
    signatures: &[AttachedSignature],
) -> Result<(), String> {
    if signatures.is_empty() {
        return Err("a signature is required, and the registry has none".into());
    }
    let mut reasons = Vec::new();
    for signature in signatures {
        match check_one(reference, keys, identity, signature) {
            Ok(()) => return Ok(()),
            Err(reason) if reasons.contains(&reason) => {}
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.join("; "))
}

fn check_one(
    reference: &Reference,
    keys: &PublicKeys,
    identity: Identity,
    signature: &AttachedSignature,
) -> Result<(), String> {
    // The payload is parsed only after its signature was verified.
    if !keys.verify(&signature.payload, &signature.signature) {
        return Err("a signature is not by an accepted key".into());
    }
    let (digest, name) = payload::parse(&signature.payload)?;
    if digest != signature.subject {
        return Err(format!("a signature is of `{digest}`, not of `{}`", signature.subject));
    }
    identity.check(reference, &name)
}

#[derive(Debug)]
pub(crate) struct PublicKeys(Vec<ParsedPublicKey>);

impl PublicKeys {
    pub(crate) fn parse(texts: &[Vec<u8>]) -> Result<Self, String> {
        const ALGORITHMS: [&dyn VerificationAlgorithm; 3] =
            [&ECDSA_P256_SHA256_ASN1, &RSA_PKCS1_2048_8192_SHA256, &ED25519];
        let key = |pem: &Vec<u8>| {
            let der = SubjectPublicKeyInfoDer::from_pem_slice(pem)
                .map_err(|error| format!("no public key in PEM: {error}"))?;
            let key = ALGORITHMS.into_iter().find_map(|algorithm| ParsedPublicKey::new(algorithm, &der).ok());
            key.ok_or_else(|| "a public key is neither ECDSA P-256, nor RSA, nor Ed25519".to_owned())
        };
        texts.iter().map(key).collect::<Result<_, _>>().map(Self)
    }

    fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        self.0.iter().any(|key| key.verify_sig(message, signature).is_ok())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Identity {
    /// Both names have a tag or a digest, and both names are equal.
    Exact,
    /// By tag, the names must be equal. By digest, equal repositories are enough, because the digest is signed.
    #[default]
    RepositoryOfDigestOrExact,
    SameRepository,
}

impl Identity {
    pub(crate) fn check(self, requested: &Reference, signed: &str) -> Result<(), String> {
        let refusal = || format!("a signature is for `{}`, not for `{requested}`", printable(signed));
        let name: Reference = signed.parse().map_err(|_| refusal())?;
        // A bare repository is no exact match, but parsing adds the tag `latest` to it.
        let is_bare = trim_tag_and_digest(signed).is_ok_and(|bare| bare.len() == signed.len());
        let same_repository = name.repository() == requested.repository();
        let is_exact = !is_bare && name.canonical() == requested.canonical();
        let is_accepted = match self {
            Self::Exact => is_exact,
            Self::RepositoryOfDigestOrExact if requested.digest().is_some() => same_repository,
            Self::RepositoryOfDigestOrExact => is_exact,
            Self::SameRepository => same_repository,
        };
        if is_accepted { Ok(()) } else { Err(refusal()) }
    }
}

#[cfg(test)]
mod tests;
