// Short names of the API's types, which `clients/generate` makes from `clients/openapi.json`.

import type { components } from "./schema.js";

export type { components, paths } from "./schema.js";

/** All types of the API by name, such as `Schemas["Limits"]`. */
export type Schemas = components["schemas"];
export type EventAccepted = Schemas["EventAccepted"];
export type Execution = Schemas["Execution"];
export type ExecutionAccepted = Schemas["ExecutionAccepted"];
export type ExecutionCancelled = Schemas["ExecutionCancelled"];
export type File = Schemas["File"];
export type Model = Schemas["Model"];
export type NewPrediction = Schemas["NewPrediction"];
export type Prediction = Schemas["Prediction"];
export type PredictionAccepted = Schemas["PredictionAccepted"];
export type Trigger = Schemas["Trigger"];
export type Workflow = Schemas["Workflow"];
export type WorkflowDefinition = Schemas["WorkflowDefinition"];
