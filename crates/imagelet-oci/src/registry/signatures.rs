//! Signatures attached to an image by cosign: the tag `ALGORITHM-HEX.sig` in the image's repository.

use std::collections::HashMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use imagelet_core::{
    error::{RuntimeError, RuntimeErrorKind},
    image::{Digest, Reference},
};
use serde::Deserialize;

use super::PullSession;
use crate::{
    manifest::{Bounded, Descriptor, LAYERS_MAX, corrupt, object},
    signature::AttachedSignature,
};

const PAYLOAD_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Maximum number of signatures that are read for one image, and maximum bytes of one signed text.
const SIGNATURES_MAX: usize = 64;
const PAYLOAD_BYTES_MAX: u64 = 1 << 20;

#[derive(Deserialize)]
struct SignatureManifest {
    layers: Option<Bounded<SignatureLayer, LAYERS_MAX>>,
}

#[derive(Deserialize)]
struct SignatureLayer {
    #[serde(flatten)]
    descriptor: Descriptor,
    annotations: Option<HashMap<String, String>>,
}

impl PullSession {
    /// The signatures of the image with this digest. Empty if the registry has no tag for them.
    pub(crate) async fn signatures(&self, subject: &Digest) -> Result<Vec<AttachedSignature>, RuntimeError> {
        let (repository, algorithm) = (self.reference().repository(), subject.algorithm().name());
        let name = format!("{repository}:{algorithm}-{}.sig", subject.hex());
        let reference: Reference =
            name.parse().map_err(|error| corrupt(format!("`{name}` names no signature")).caused_by(error))?;
        let document = match self.fetch_manifest(reference, None).await {
            Ok((document, _)) => document,
            Err(error) if error.kind() == RuntimeErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let manifest = self.parse(&document.bytes, |bytes| object::<SignatureManifest>(bytes)).await?;
        let manifest =
            manifest.map_err(|error| corrupt(format!("the signatures `{name}` cannot be read")).caused_by(error))?;
        let layers = manifest.layers.unwrap_or_default().all("signature manifest", "layers")?;
        let mut signatures = Vec::new();
        let signed = layers.into_iter().filter(|layer| layer.descriptor.media_type == PAYLOAD_TYPE);
        for layer in signed.take(SIGNATURES_MAX) {
            let text = layer.annotations.unwrap_or_default().remove(SIGNATURE);
            let Some(signature) = text.and_then(|text| BASE64_STANDARD.decode(text).ok()) else { continue };
            let payload = self.fetch_blob_bytes(&layer.descriptor, PAYLOAD_BYTES_MAX).await?.to_vec();
            signatures.push(AttachedSignature { subject: subject.clone(), payload, signature });
        }
        Ok(signatures)
    }
}
