//! Reads challenges for fuzzers.

use std::error::Error;

use http::{HeaderMap, HeaderValue, header};

use super::auth::challenge;

pub(crate) type Plain = (String, Vec<(String, String)>);

pub(crate) fn challenges(values: &[HeaderValue]) -> Result<Vec<Plain>, Box<dyn Error>> {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(header::WWW_AUTHENTICATE, value.clone());
    }
    let found = challenge::challenges(&headers)?;
    Ok(found.into_iter().map(|challenge| (challenge.scheme.clone(), challenge.parameters().to_vec())).collect())
}
