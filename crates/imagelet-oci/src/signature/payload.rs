//! The text that cosign signs, in the format "simple signing".

use imagelet_core::image::Digest;
use serde::{Deserialize, de::IgnoredAny};

use crate::manifest::{object, printable};

const TYPE: &str = "cosign container image signature";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Payload {
    critical: Critical,
    #[serde(rename = "optional")]
    _optional: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Critical {
    #[serde(rename = "type")]
    kind: String,
    image: SignedImage,
    identity: SignedIdentity,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignedImage {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignedIdentity {
    #[serde(rename = "docker-reference")]
    reference: String,
}

/// The signed digest and the signed name. An unknown field outside of `optional` is an error, because it may restrict
/// what is signed.
pub(crate) fn parse(bytes: &[u8]) -> Result<(Digest, String), String> {
    let payload: Payload = object(bytes).map_err(|error| format!("the signed text cannot be read: {error}"))?;
    let Critical { kind, image, identity } = payload.critical;
    if kind != TYPE {
        return Err(format!("the signed text is of type `{}`", printable(&kind)));
    }
    let digest = image.digest.parse().map_err(|error| format!("`{}`: {error}", printable(&image.digest)))?;
    Ok((digest, identity.reference))
}
