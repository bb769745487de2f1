//! Comes with the webhooks.
