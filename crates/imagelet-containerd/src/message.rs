//! Messages of which field 1 is all.
//!
//! One that has a text alone is a `String`: Prost encodes it as such a field.

use prost::Message;

/// The message that holds one other, such as `GetImageResponse`.
#[derive(Clone, Debug, PartialEq, Message)]
#[prost(skip_debug)]
pub struct One<T: Message + Default> {
    /// The other message.
    #[prost(message, optional, tag = "1")]
    pub item: Option<T>,
}

/// The message that lists others, such as `ListImagesResponse`, or a page of a list.
#[derive(Clone, Debug, PartialEq, Message)]
#[prost(skip_debug)]
pub struct Many<T: Message + Default> {
    /// The other messages.
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<T>,
}
