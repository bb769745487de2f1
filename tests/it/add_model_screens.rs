//! The form *Add a model* in a browser: it composes a command with the entered values.

use crate::support::Service;
use crate::support::chromium::Chromium;

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn add_model_form_composes_the_command() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let member = service.member(&owner, "grace@example.com").await;
    let browser = Chromium::start().await;
    browser.becomes(&service, &member).await;
    browser.open(&service, "/app/models").await;
    browser.press("Add a model").await;
    browser.see("Chat with a GGUF file").await;
    browser.see("Fill in the model to see the command.").await;
    browser.fill("Model", "/srv/my model.gguf").await;
    browser.see("orrery model add llama-server --model '/srv/my model.gguf'").await;
    browser.is_accessible("a new model").await;
    browser.choose("Recipe", "piper").await;
    browser.fill("URL of a server that runs already", "http://box:5000").await;
    browser.see("orrery model add piper --url http://box:5000").await;
    browser.press("Close").await;
    browser.see_no_more("Fill in the model").await;
    browser.leave().await;
}
