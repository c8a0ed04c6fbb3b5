//! An error of the HTTP client, displayed without the layers of the library that only pass it on.

use std::{error::Error, fmt};

use hyper_util::client::legacy::Error as ClientError;

/// Displays the first cause that explains the failure. `client error (Connect)` and `connection error` only name a
/// layer of the library.
#[derive(Debug)]
pub(crate) struct HttpError(Box<dyn Error + Send + Sync>);

impl HttpError {
    pub(crate) fn new(error: impl Error + Send + Sync + 'static) -> Self {
        Self(Box::new(error))
    }

    /// The library's original error, for classification.
    pub(crate) fn get_ref(&self) -> &(dyn Error + 'static) {
        &*self.0
    }

    fn informative(&self) -> &(dyn Error + 'static) {
        let mut error = self.get_ref();
        while let Some(cause) = error.source().filter(|_| is_layer(error)) {
            error = cause;
        }
        error
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.informative(), f)
    }
}

impl Error for HttpError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.informative().source()
    }
}

/// A hyper error without a cause explains the failure. A hyper error with a cause only says where hyper noticed it.
fn is_layer(error: &(dyn Error + 'static)) -> bool {
    error.is::<ClientError>() || error.is::<hyper::Error>()
}
