//! People who use the dashboard over HTTP as a browser does: with a cookie, and from its own pages.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use super::{Ask, Service};

pub(crate) const PASSWORD: &str = "correct horse battery";

/// A person with a session.
#[derive(Debug, Clone)]
pub(crate) struct Person {
    pub cookie: String,
    pub email: String,
}

impl Service {
    /// Creates a request as sent by one of the dashboard's own pages, without a session.
    pub(crate) fn page_asks(&self, method: Method, path: &str) -> Ask {
        self.ask(Role::Dashboard, method, path).header("sec-fetch-site", "same-origin")
    }

    /// Creates a request as sent by one of the dashboard's own pages, with a person's session.
    pub(crate) fn asks(&self, person: &Person, method: Method, path: &str) -> Ask {
        self.page_asks(method, path).header("cookie", &person.cookie)
    }

    /// Creates a new link for the Owner; returns its token.
    pub(crate) async fn owner_token(&self) -> String {
        let members = &self.running.services.members;
        token_of(&members.owner_link(self.organization.id).await.unwrap().url("http://d"))
    }

    /// Creates the Owner of the first organization.
    pub(crate) async fn owner(&self) -> Person {
        let token = self.owner_token().await;
        self.joins("/setup", &token, "owner@example.com").await
    }

    /// Adds a member through an invitation from the Owner.
    pub(crate) async fn member(&self, owner: &Person, email: &str) -> Person {
        let made = self.asks(owner, Method::POST, "/invitations").json(&json!({}));
        let made = made.send().await.expect(201);
        self.joins("/invitations/accept", &token_of(made["url"].as_str().unwrap()), email).await
    }

    /// Uses a link to join.
    pub(crate) async fn joins(&self, path: &str, token: &str, email: &str) -> Person {
        let body = json!({"token": token, "name": email, "email": email, "password": PASSWORD});
        let answer = self.page_asks(Method::POST, path).json(&body).send().await;
        assert_eq!(answer.status, 204, "{}", answer.text);
        Person { cookie: cookie_of(answer.header("set-cookie")), email: email.to_owned() }
    }

    /// Logs in; returns the response.
    pub(crate) async fn logs_in(&self, email: &str, password: &str) -> super::Answer {
        let body = json!({"email": email, "password": password});
        self.page_asks(Method::POST, "/session").json(&body).send().await
    }

    /// Returns the id of a member.
    pub(crate) async fn id_of(&self, asking: &Person, email: &str) -> String {
        let all = self.asks(asking, Method::GET, "/members").send().await.expect(200);
        let found = all["members"].as_array().unwrap().iter().find(|one| one["email"] == email);
        found.map(|one| one["id"].as_str().unwrap().to_owned()).unwrap()
    }

    /// Returns the session as the person's page sees it.
    pub(crate) async fn session_of(&self, person: &Person) -> Value {
        self.asks(person, Method::GET, "/session").send().await.expect(200)
    }
}

/// Returns the name and value of a `Set-Cookie` header.
pub(crate) fn cookie_of(header: &str) -> String {
    header.split(';').next().unwrap().to_owned()
}

/// Returns the fragment of a link.
pub(crate) fn token_of(url: &str) -> String {
    url.split_once('#').unwrap().1.to_owned()
}
