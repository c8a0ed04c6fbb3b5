//! Signatures of images: the policy file that says which images need one, and the check of those that a registry has.
//!
//! Nothing here asks a network: `registry/signatures` fetches what is attached to an image. A type of requirement that is
//! known and not supported refuses; it never accepts.

mod identity;
mod keys;
mod payload;
mod policy;

use imagelet_core::image::{Digest, Reference};

pub(crate) use self::{
    identity::Identity,
    keys::PublicKeys,
    policy::{KeySource, POLICY_BYTES_MAX, Requirement, Rule, SignaturePolicy, Transport},
};

/// What a signed text says: the digest and the name.
#[cfg(feature = "fuzzing")]
pub(crate) fn claim(text: &[u8]) -> Result<(Digest, String), String> {
    payload::parse(text).map(|claim| (claim.digest, claim.identity))
}

/// A signature attached to an image: the signed text, and its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttachedSignature {
    /// The digest that it is attached to.
    pub(crate) subject: Digest,
    pub(crate) payload: Vec<u8>,
    pub(crate) signature: Vec<u8>,
}

/// Checks that one of the signatures, by one of the keys, is of this image and has an accepted name.
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
    // The payload is read after its signature was verified.
    if !keys.verify(&signature.payload, &signature.signature) {
        return Err("a signature is not by an accepted key".into());
    }
    let claim = payload::parse(&signature.payload)?;
    if claim.digest != signature.subject {
        return Err(format!("a signature is of `{}`, not of `{}`", claim.digest, signature.subject));
    }
    identity.check(reference, &claim.identity)
}

#[cfg(test)]
mod tests;
