//! Public keys of a requirement, and the verification of a signature by them.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ED25519, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey,
    VerificationAlgorithm,
};
use rustls::pki_types::{SubjectPublicKeyInfoDer, pem::PemObject as _};

#[derive(Debug)]
pub(crate) struct PublicKeys(Vec<PublicKey>);

struct PublicKey {
    algorithm: &'static dyn VerificationAlgorithm,
    der: Vec<u8>,
}

impl std::fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PublicKey").finish_non_exhaustive()
    }
}

impl PublicKeys {
    /// Reads one PEM text for each key.
    pub(crate) fn parse(texts: &[Vec<u8>]) -> Result<Self, String> {
        texts.iter().map(|text| PublicKey::parse(text)).collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        self.0.iter().any(|key| UnparsedPublicKey::new(key.algorithm, &key.der).verify(message, signature).is_ok())
    }
}

impl PublicKey {
    fn parse(pem: &[u8]) -> Result<Self, String> {
        let der =
            SubjectPublicKeyInfoDer::from_pem_slice(pem).map_err(|error| format!("no public key in PEM: {error}"))?;
        let der = der.as_ref().to_vec();
        if ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &der).is_ok() {
            return Ok(Self { algorithm: &ECDSA_P256_SHA256_ASN1, der });
        }
        if ParsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &der).is_ok() {
            return Ok(Self { algorithm: &RSA_PKCS1_2048_8192_SHA256, der });
        }
        if ParsedPublicKey::new(&ED25519, &der).is_ok() {
            return Ok(Self { algorithm: &ED25519, der });
        }
        Err("a public key is neither ECDSA P-256, nor RSA, nor Ed25519".into())
    }
}
